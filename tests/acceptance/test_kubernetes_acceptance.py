"""Chart and base for Kubernetes: the schemas of its releases, and values that are refused."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
needs_schemas = pytest.mark.skipif(
    shutil.which("kubernetes-validate") is None, reason="needs kubernetes-validate"
)
RELEASES = ("1.25", "1.31", "1.37")
INSECURE = ["insecure=true"]
SECURE = ["gateway.tlsSecret=a", "gateway.accessSecret=b", "agents.tlsSecret=c"]
TWO = [*SECURE, "gateway.journalSecret=database"]
DIGEST = f"sha256:{'0' * 64}"


def group(name: str = "x86", **changes: str) -> list[str]:
    """Return the values of a group of agents."""
    values = {"workerClass": "x86", "nodeSelector.pool": "x86", **changes}
    return [f"agents.groups.{name}.{key}={value}" for key, value in values.items()]


VALUES = {
    "insecure": INSECURE,
    "secure": [*SECURE, *group()],
    "network policy": [
        *(*SECURE, "networkPolicy.enabled=true"),
        "networkPolicy.agents[0].ipBlock.cidr=10.20.0.0/16",
        *group(**{"options.peer-port": "8020"}),
    ],
    "scaled": [*INSECURE, *group(kind="Deployment")],
    "two replicas": [*INSECURE, *group(kind="Deployment", replicas="2", maxUnavailable="50%")],
    "power modes": [*INSECURE, *group(powerModes="true")],
    "models on the node": [*INSECURE, *group(**{"models.hostPath": "/models", "cache": "/cache"})],
    "models of a claim": [*INSECURE, *group(**{"models.claim": "models"})],
    "images of two machines": [
        *(*INSECURE, *group(), *group("jetson", **{"image.tag": "0.1.0-arm64"})),
        f"gateway.image.digest={DIGEST}",
    ],
    "kept claim": [*INSECURE, "gateway.storage.existingClaim=journal"],
    "storage class": [*INSECURE, "gateway.storage.className=fast"],
    "two gateways": [*TWO, "gateway.dataClaim=shared", *group()],
    "load balancers": [
        *(*SECURE, "gateway.service.type=LoadBalancer", "gateway.agentService.type=LoadBalancer"),
        "gateway.service.loadBalancerClass=example.com/internal",
        "gateway.service.loadBalancerSourceRanges[0]=10.0.0.0/8",
        "gateway.agentService.annotations.a=b",
    ],
    "pods": [
        *(*SECURE, "gateway.pod.priorityClassName=high", "gateway.pod.tolerations[0].key=gateway"),
        *("gateway.env[0].name=A", "gateway.env[0].value=B", "gateway.podLabels.a=b"),
        *("gateway.envFrom[0].secretRef.name=s3", "gateway.podAnnotations.a=b"),
        *("gateway.volumes[0].name=ca", "gateway.volumes[0].configMap.name=ca"),
        *("gateway.volumeMounts[0].name=ca", "gateway.volumeMounts[0].mountPath=/ca"),
        *("gateway.serviceAccount.annotations.role=store", "gateway.options.policy=malleable"),
        *group(**{"pod.runtimeClassName": "nvidia", "resources.limits.nvidia\\.com/gpu": "1"}),
    ],
    "backup": [
        *(*INSECURE, "backup.claim=copies", "gateway.dataClaim=shared"),
        "gateway.pod.priorityClassName=high",
    ],
    "dashboard": [*INSECURE, "monitoring.dashboard.enabled=true"],
    "longest names": [
        *(*INSECURE, f"fullnameOverride={'x' * 40}", *group("y" * 15)),
    ],
}


def template(*values: str, release: str = "1.25") -> subprocess.CompletedProcess[str]:
    command = ["helm", "template", "synergai", str(FOLDER / "chart"), "--kube-version", release]
    for value in values:
        command += ["--set", value]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(*values: str) -> str:
    done = template(*values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def validate(manifests: str, release: str, folder: Path) -> None:
    path = folder / "manifests.yaml"
    path.write_text(manifests)
    command = ["kubernetes-validate", "-k", release, "--strict", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr, done.stdout + done.stderr


@needs_helm
@needs_schemas
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_chart_is_valid(values: list[str], release: str, tmp_path: Path) -> None:
    done = template(*values, release=release)
    assert done.returncode == 0, done.stderr
    validate(done.stdout, release, tmp_path)


@needs_kubectl
@needs_schemas
@pytest.mark.parametrize("release", RELEASES)
def test_base_is_valid(release: str, tmp_path: Path) -> None:
    command = ["kubectl", "kustomize", str(FOLDER / "base")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    validate(done.stdout, release, tmp_path)


@needs_helm
def test_base_is_what_the_chart_renders() -> None:
    options = ["--values", str(FOLDER / "base" / "values.yaml"), "--kube-version", "1.25"]
    command = ["helm", "template", "synergai", str(FOLDER / "chart"), *options, "--skip-tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (FOLDER / "base" / "synergai.yaml").read_text() == done.stdout


@needs_kubectl
def test_agents_of_a_prefixed_base_connect_to_its_gateway(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "base", tmp_path / "base")
    (tmp_path / "kustomization.yaml").write_text("namePrefix: blue-\nresources: [base]\n")
    command = ["kubectl", "kustomize", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "name: blue-synergai-hub" in done.stdout
    assert "value: blue-synergai-hub" in done.stdout


@needs_helm
@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["gateway.drainSeconds=-1"], "/gateway/drainSeconds"),
        (["gateway.service.type=NodePort"], "/gateway/service/type"),
        (["gateway.storage.size=10"], "/gateway/storage/size"),
        (["gateway.storage.size=0Gi"], "/gateway/storage/size"),
        (["gateway.replicas=2"], "'replicas'"),
        (["gateway.resources.limits.memroy=2Gi"], "'memroy'"),
        (["gateway.resources.limit.memory=2Gi"], "'limit'"),
        (["gateway.resources.limits.memory=2GB"], "/gateway/resources/limits/memory"),
        (["gateway.options.bogus=1"], "'bogus'"),
        (["gateway.options.listen=0.0.0.0:80"], "'listen'"),
        (["gateway.options.max-requests=many"], "/gateway/options/max-requests"),
        (["gateway.options.no-preload=false"], "/gateway/options/no-preload"),
        (["gateway.pod.hostNetwork=true"], "'hostNetwork'"),
        (["gateway.image.digest=latest"], "/gateway/image/digest"),
        (["gateway.service.loadBalancerSourceRanges[0]=10.0.0.0"], "loadBalancerSourceRanges/0"),
        (["image.registry=https://registry.example.com"], "/image/registry"),
        (["image.tag=a b"], "/image/tag"),
        (["image.pullPolicy=Sometimes"], "/image/pullPolicy"),
        (["networkPolicy=true"], "/networkPolicy"),
        (["networkPolicy.agents[0].cidr=10.0.0.0/8"], "'cidr'"),
        (["monitoring.serviceMonitor.enabled=please"], "/monitoring/serviceMonitor/enabled"),
        (["monitoring.serviceMonitor.interval=30"], "/monitoring/serviceMonitor/interval"),
        ([f"fullnameOverride={'x' * 41}"], "/fullnameOverride"),
        (["backup.schedule=hourly"], "/backup/schedule"),
        (["backup.claim=a", "gateway.journalSecret=b"], "/backup/claim"),
        (["certificates.issuer=ca", "agents.tlsSecret=a"], "/gateway/tlsSecret"),
        (["certificates.issuer=ca", "gateway.tlsSecret=a"], "/agents/tlsSecret"),
        (["agents.groups[0].name=x86"], "/agents/groups"),
        (group("Not_A_Name"), "'Not_A_Name'"),
        (group("x" * 16), f"'{'x' * 16}'"),
        (group(**{"image.name": "Agent"}), "/agents/groups/x86/image/name"),
        (group(**{"nodeSelector.pool": "2"}), "/agents/groups/x86/nodeSelector/pool"),
        (group(**{"models.hostPath": "models"}), "/agents/groups/x86/models/hostPath"),
        (group(kind="Deployment", replicas="-1"), "/agents/groups/x86/replicas"),
        (group(replicas="2"), "/agents/groups/x86/replicas"),
        (group(sharedMemory="0Gi"), "/agents/groups/x86/sharedMemory"),
        (group(maxUnavailable="0"), "/agents/groups/x86/maxUnavailable"),
        (group(workerClass=""), "/agents/groups/x86/workerClass"),
        (["agents.groups.x86.workerClass=x86"], "'nodeSelector'"),
    ],
)
def test_value_that_cannot_work_is_named(values: list[str], named: str) -> None:
    done = template(*INSECURE, *values)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr
    assert named in done.stderr


@needs_helm
@pytest.mark.parametrize("missing", range(len(SECURE)))
def test_chart_without_secrets_says_what_is_missing(missing: int) -> None:
    done = template(*(value for n, value in enumerate(SECURE) if n != missing))
    assert done.returncode != 0
    assert f"/{SECURE[missing].partition('=')[0].replace('.', '/')}" in done.stderr


@needs_helm
def test_lint_refuses_defaults_that_cannot_be_installed() -> None:
    command = ["helm", "lint", str(FOLDER / "chart")]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert subprocess.run([*command, "--set", "insecure=true"], check=False).returncode == 0


@needs_helm
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("serviceMonitor", "kind: ServiceMonitor"),
        ("rules", "alert: SynergaiGatewayDown"),
        ("dashboard", "synergai.json:"),
    ],
)
def test_monitoring_is_rendered_on_request(what: str, text: str) -> None:
    assert text not in rendered(*SECURE)
    assert text in rendered(*SECURE, f"monitoring.{what}.enabled=true")


@needs_helm
def test_limit_of_memory_follows_from_the_requests_in_flight() -> None:
    assert "memory: 3942Mi" in rendered(*INSECURE)
    assert "memory: 2790Mi" in rendered(*INSECURE, "gateway.maxRequestMebibytes=256")
    own = rendered(*INSECURE, "gateway.resources.limits.memory=9Gi")
    assert "memory: 9Gi" in own
    assert "3942Mi" not in own


@needs_helm
def test_peers_may_connect_whether_one_group_or_all_have_a_port_for_them() -> None:
    policy = [*INSECURE, "networkPolicy.enabled=true", *group()]
    assert "- port: 8020" not in rendered(*policy)
    for groups in ("groups.x86", "group"):
        text = rendered(*policy, f"agents.{groups}.options.peer-port=8020")
        assert "- port: 8020" in text


@needs_helm
def test_policy_concerns_agents_of_its_release_only() -> None:
    lines = rendered(*INSECURE, "networkPolicy.enabled=true").splitlines()
    found = [at for at, line in enumerate(lines) if line.strip() == 'synergai/agent: "true"']
    assert found
    assert all("app.kubernetes.io/instance: synergai" in lines[at - 1] for at in found)


@needs_helm
def test_backup_has_the_claim_of_inputs_and_results() -> None:
    [backup] = [
        text
        for text in rendered(*INSECURE, "backup.claim=copies", "gateway.dataClaim=shared").split(
            "---\n"
        )
        if "kind: CronJob" in text
    ]
    assert "mountPath: /var/lib/synergai/data" in backup
    assert "claimName: shared" in backup


@needs_helm
def test_certificates_name_every_service_of_the_gateways() -> None:
    text = rendered(*TWO, "certificates.issuer=ca")
    for service in ("gateway", "hub", "gateway-0", "gateway-1"):
        assert f"    - synergai-{service}\n" in text
