{{- define "synergai.labels" -}}
app.kubernetes.io/name: synergai
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "synergai.image" -}}
{{ .root.Values.image.registry }}/synergai-{{ .role }}:{{ .root.Values.image.tag }}
{{- end }}

{{- define "synergai.pod" -}}
automountServiceAccountToken: false
# The variables of a Service named "…-gateway" look like settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "synergai.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
