{{- define "synergai.name" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "synergai.selector" -}}
app.kubernetes.io/name: synergai
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "synergai.labels" -}}
{{ include "synergai.selector" . }}
app.kubernetes.io/part-of: synergai
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "synergai.image" -}}
{{ .root.Values.image.registry }}/synergai-{{ .image.name }}
{{- with .image.digest }}@{{ . }}{{ else }}:{{ .image.tag | default .root.Values.image.tag }}{{ end }}
{{- end }}

{{- define "synergai.claim" -}}
{{ .Values.gateway.storage.existingClaim | default (printf "%s-gateway" (include "synergai.name" .)) }}
{{- end }}

{{- define "synergai.accountName" -}}
{{ .Values.gateway.serviceAccount.name | default (printf "%s-gateway" (include "synergai.name" .)) }}
{{- end }}

{{/* Fields that all pods have. "root" and "part": the gateway's values, or a group's. */}}
{{- define "synergai.pod" -}}
# The variables of a Service named "…-gateway" look like settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add .part.drainSeconds 20 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .part.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "synergai.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Fields of the containers of gateway and agents, but for arguments and mounts. */}}
{{- define "synergai.container" -}}
image: {{ include "synergai.image" (dict "root" .root "image" .part.image) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- with .part.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "synergai.confined" . }}
# Only a process that hangs is not alive.
livenessProbe:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
  {{- if semverCompare ">=1.25-0" .root.Capabilities.KubeVersion.Version }}
  terminationGracePeriodSeconds: 5
  {{- end }}
readinessProbe:
  httpGet: {path: /readyz, port: probes}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}

{{- define "synergai.options" -}}
{{- range $name, $value := . }}
{{- if kindIs "bool" $value }}
- --{{ $name }}
{{- else }}
- {{ printf "--%s=%s" $name (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fields of a Service that its users choose. */}}
{{- define "synergai.service" -}}
type: {{ .type }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
