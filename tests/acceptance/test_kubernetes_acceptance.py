"""Chart and base for Kubernetes against the schemas of its releases."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
PROGRAMS = ("helm", "kubectl", "kubernetes-validate")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"
)
RELEASES = ("1.25", "1.37")
INSECURE = ["insecure=true"]
SECURE = ["gateway.tlsSecret=a", "gateway.accessSecret=b", "agents.tlsSecret=c"]


def group(**changes: str) -> list[str]:
    """Return the values of a group of agents; setting one of them replaces the whole list."""
    values = {"name": "x86", "image": "agent-tflite", "workerClass": "x86"}
    values |= {"nodeSelector.pool": "x86", **changes}
    return [f"agents.groups[0].{key}={value}" for key, value in values.items()]


VALUES = {
    "insecure": INSECURE,
    "secure": SECURE,
    "network policy": [*SECURE, "networkPolicy=true"],
    "replicas": [*INSECURE, *group(replicas="2")],
    "power modes": [*INSECURE, *group(powerModes="true")],
    "fetched models": [*INSECURE, *group(models="")],
    "no agents": [*INSECURE, "agents.groups=null"],
    "storage class": [*INSECURE, "gateway.storage.className=fast"],
    "two gateways": [*SECURE, "gateway.journalSecret=database", "gateway.dataClaim=shared"],
    "load balancer": [*SECURE, "gateway.serviceType=LoadBalancer"],
}


def template(*values: str, release: str = "1.25") -> subprocess.CompletedProcess[str]:
    command = ["helm", "template", "synergai", str(FOLDER / "chart"), "--kube-version", release]
    for value in values:
        command += ["--set", value]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def validate(manifests: str, release: str, folder: Path) -> None:
    path = folder / "manifests.yaml"
    path.write_text(manifests)
    command = ["kubernetes-validate", "-k", release, "--strict", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_chart_is_valid(values: list[str], release: str, tmp_path: Path) -> None:
    done = template(*values, release=release)
    assert done.returncode == 0, done.stderr
    validate(done.stdout, release, tmp_path)


@pytest.mark.parametrize("release", RELEASES)
def test_base_is_valid(release: str, tmp_path: Path) -> None:
    command = ["kubectl", "kustomize", str(FOLDER / "base")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    validate(done.stdout, release, tmp_path)


def test_base_is_what_the_chart_renders() -> None:
    options = ["--values", str(FOLDER / "base" / "values.yaml"), "--kube-version", "1.25"]
    command = ["helm", "template", "synergai", str(FOLDER / "chart"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (FOLDER / "base" / "synergai.yaml").read_text() == done.stdout


@pytest.mark.parametrize(
    "values",
    [
        ["gateway.drainSeconds=-1"],
        ["gateway.serviceType=NodePort"],
        ["gateway.storage.size=10"],
        ["gateway.replicas=2"],
        ["image.tag=a b"],
        ["image.pullPolicy=Sometimes"],
        group(name="Not_A_Name"),
        group(image="gateway"),
        group(**{"nodeSelector.pool": "2"}),
        group(models="models"),
        group(replicas="-1"),
        ["monitoring.serviceMonitor=please"],
    ],
)
def test_values_that_cannot_work_are_refused(values: list[str]) -> None:
    done = template(*INSECURE, *values)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr


@pytest.mark.parametrize("missing", range(len(SECURE)))
def test_chart_without_secrets_says_what_is_missing(missing: int) -> None:
    done = template(*(value for n, value in enumerate(SECURE) if n != missing))
    assert done.returncode != 0
    assert "is missing; set insecure=true if" in done.stderr


@pytest.mark.parametrize("what", ["serviceMonitor", "rules"])
def test_monitoring_is_rendered_on_request(what: str) -> None:
    kind = {"serviceMonitor": "ServiceMonitor", "rules": "PrometheusRule"}[what]
    assert f"kind: {kind}" not in template(*SECURE).stdout
    rendered = template(*SECURE, f"monitoring.{what}=true").stdout
    assert f"kind: {kind}" in rendered
    assert what != "rules" or "alert: SynergaiGatewayDown" in rendered
