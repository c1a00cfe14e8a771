"""Chart and base on a real Kubernetes: serving, drained nodes, upgrades, and agents from outside.

Commands come from the guide. The agents are two, one on each node.
"""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

import pytest

from deploy.images.build import ROOT, build
from profiler.zoo.recipes import build as build_engine
from synergai.domain import EngineName
from tests.acceptance.images import build_base, output
from tests.acceptance.kubernetes_cluster import BALANCER, NODES, Cluster, missing_programs
from tests.guides import blocks
from tests.waiting import wait_until

LACKING: Final = missing_programs("helm", "buildah", "mmdebstrap")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        bool(LACKING),
        reason=f"needs {', '.join(LACKING)} on PATH, or in the folder KUBERNETES_BIN",
    ),
    pytest.mark.skipif(find_spec("pip") is None, reason="needs pip"),
]
CHART: Final = str(ROOT / "deploy" / "kubernetes" / "chart")
SERVICE: Final = "synergai-gateway"
ENGINE: Final = "onnx_identity"
PAUSE: Final = "localhost/synergai-test-pause:1"
VERSION: Final = "0.1.0-amd64"
JOBS: Final = 30
QUERIES: Final = 100_000
KUBERNETES: Final = blocks("kubernetes")["Install"]
SIGN: Final = """
new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
$new -x509 -subj /CN=authority -keyout ca.key -out ca.crt
sign="openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -copy_extensions copy"
names=subjectAltName=DNS:{service},IP:{balancer}
$new -subj /CN=gateway -addext $names -keyout tls.key | $sign -out tls.crt
$new -subj /CN=agents -keyout agents.key | $sign -out agents.crt
"""
TABLE: Final = """
[[clients]]
name = "ops"
token_sha256 = "{}"

[[grants]]
to = ["ops"]
roles = ["infer", "submit", "observe"]
"""
# The base is of policy/v1, which Kubernetes 1.20 does not know.
OVERLAY: Final = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "resources": ["base"],
    "patches": [
        {
            "target": {"kind": "PodDisruptionBudget"},
            "patch": '[{"op": "replace", "path": "/apiVersion", "value": "policy/v1beta1"}]',
        },
        {
            "target": {"kind": "Service"},
            "patch": '[{"op": "replace", "path": "/spec/type", "value": "LoadBalancer"}]',
        },
    ],
}


class Release:
    """What clients of the gateway see."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.target = f"{cluster.name_service(SERVICE)}:8001"
        self.options: list[str] = []

    def command(self, *arguments: str) -> list[str]:
        own = ["--target", self.target, *self.options]
        return [sys.executable, "-m", "synergai", *arguments, *own]

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.cluster.run(*self.command(*arguments, "--json")))

    def workers(self) -> list[str]:
        done = self.cluster.run(*self.command("workers", "--json"), check=False)
        return [each["id"] for each in json.loads(done)] if done.startswith("[") else []

    def wait_for_workers(self, *names: str) -> None:
        wait_until(lambda: set(names) <= set(self.workers()), 120.0)

    def try_to_infer(self) -> str:
        command = self.command("infer", ENGINE, "--input", "[1.5]")
        return self.cluster.run(*command, check=False)

    def infer(self) -> None:
        wait_until(lambda: "1.5" in self.try_to_infer())

    def submit(self) -> None:
        """Submit jobs, which take longer than what the test does."""
        for _ in range(JOBS):
            sizes = ["--queries", str(QUERIES), "--qos", "600"]
            self.cluster.run(*self.command("submit", ENGINE, *sizes, "--detach"))

    def start_load(self, seconds: int) -> subprocess.Popen[str]:
        load = ["load", ENGINE, "--rate", "50", "--deadline-ms", "5000"]
        load += ["--duration", str(seconds), "--json"]
        return self.cluster.popen(*self.command(*load), output=subprocess.PIPE)

    def assert_jobs_are_complete(self) -> None:
        def done() -> list[int]:
            jobs = self.ask("jobs", "list", "--limit", "1000")
            return [each["queries_done"] for each in jobs if each["state"] == "succeeded"]

        wait_until(lambda: len(done()) == JOBS, 300.0)
        assert done() == [QUERIES] * JOBS


def report(load: subprocess.Popen[str]) -> Any:
    printed, _ = load.communicate()
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    keys = ("requests", "met", "late", "expired", "rejected", "failed", "first_failure")
    print({key: found.get(key) for key in keys})
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("images")
    base = build_base(folder, "amd64")
    (folder / "Containerfile").write_text(
        f'FROM {base}\nENTRYPOINT ["python3.11", "-c", "import signal; signal.pause()"]\n'
    )
    output("buildah", "build", "--quiet", "--format", "oci", "--tag", PAUSE, str(folder))
    images = [PAUSE, *(build(role, "amd64", base) for role in ("gateway", "agent-onnxruntime"))]
    for number, name in enumerate(images):
        output("buildah", "push", "--quiet", name, f"oci-archive:{folder}/{number}.tar:{name}")
    models = folder / "models"
    build_engine(EngineName(ENGINE), models)
    subprocess.run(["chmod", "-R", "a+rX", str(models)], check=True)
    with Cluster(tmp_path_factory.mktemp("k8s"), models, PAUSE) as cluster:
        for number in range(len(images)):
            cluster.import_image(folder / f"{number}.tar")
        for role in ("gateway", "agent-onnxruntime"):
            name = f"localhost/synergai-{role}"
            cluster.tag_image(f"{name}:{VERSION}", f"{name}:next")
        yield cluster


@pytest.fixture
def volume(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """Provide the volume that the gateway claims; remove the release and it in the end."""
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    claim = {"namespace": "default", "name": SERVICE}
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(state), "type": "Directory"},
        "claimRef": claim,
    }
    metadata = {"name": "gateway"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}
    )
    for node in NODES:
        cluster.kubectl("label", "node", node, "synergai/worker=x86", "--overwrite")
    yield
    cluster.run("helm", "uninstall", "synergai", "--wait", check=False)
    everything = "daemonset,deployment,service,poddisruptionbudget,networkpolicy,pvc"
    cluster.kubectl("delete", everything, "--selector", "app.kubernetes.io/name=synergai")
    cluster.kubectl("delete", "pod", "--all")
    cluster.kubectl("delete", "pv", "gateway")


@pytest.fixture
def files(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Create the secrets by the guide's commands; return the folder of their files."""
    script = SIGN.format(service=SERVICE, balancer=BALANCER)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    token = token_urlsafe()
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    digest = hashlib.sha256(token.encode()).hexdigest()
    (tmp_path / "access.toml").write_text(TABLE.format(digest))
    for line in KUBERNETES:
        if line.startswith("kubectl create secret"):
            cluster.run("bash", "-c", f"cd {tmp_path} && {line}")
    yield tmp_path
    cluster.kubectl("delete", "secret", "synergai-tls", "synergai-agent-tls", "synergai-access")


@pytest.mark.usefixtures("volume")
def test_drain_loses_no_request_and_upgrade_no_job(cluster: Cluster, tmp_path: Path) -> None:
    values = ["--set", "insecure=true"]
    values += ["--set", r"gateway.nodeSelector.kubernetes\.io/hostname=n1"]
    cluster.run("helm", "install", "synergai", CHART, *values)
    release = Release(cluster, tmp_path)
    release.wait_for_workers("n1", "n2")
    release.infer()

    load = release.start_load(20)
    time.sleep(3)
    for line in blocks("production")["Drained node"]:
        cluster.run(*shlex.split(line))
        if line.startswith("kubectl drain"):
            wait_until(lambda: "n2" not in release.workers())
    found = report(load)
    assert found["met"] == found["requests"]
    release.wait_for_workers("n1", "n2")

    release.submit()
    load = release.start_load(30)
    time.sleep(3)
    [line] = [each for each in blocks("kubernetes")["Upgrade"] if "helm" in each]
    began = time.monotonic()
    cluster.run("bash", "-c", f"cd {ROOT} && {line.replace('TAG', 'next')}")
    release.wait_for_workers("n1", "n2")
    print(f"upgraded after {time.monotonic() - began:.1f} s")
    found = report(load)
    assert found["met"] + found["failed"] == found["requests"]
    images = {
        container["image"]
        for pod in cluster.get("pods")["items"]
        for container in pod["spec"]["containers"]
    }
    assert all(image.endswith(":next") for image in images)
    release.assert_jobs_are_complete()


@pytest.mark.usefixtures("volume")
def test_base_serves_clients_with_a_token_only(cluster: Cluster, files: Path) -> None:
    overlay = files / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(json.dumps(OVERLAY))
    subprocess.run(["cp", "-r", f"{CHART}/../base", str(overlay / "base")], check=True)
    cluster.kubectl("apply", "--kustomize", str(overlay))
    secured(cluster, files)


@pytest.mark.usefixtures("volume")
def test_agents_outside_of_the_cluster_join_the_secured_chart(
    cluster: Cluster, files: Path
) -> None:
    [install] = [line for line in KUBERNETES if line.startswith("helm install")]
    install = f"{install.replace('REGISTRY', 'localhost')} --set gateway.serviceType=LoadBalancer"
    cluster.run("bash", "-c", f"cd {ROOT} && {install}")
    release = secured(cluster, files)
    models = files / "models"
    build_engine(EngineName(ENGINE), models)
    agent = [sys.executable, "-m", "synergai", "agent", "--gateway", f"{BALANCER}:8010"]
    agent += ["--worker-id", "outside", "--worker-class", "x86", "--models", str(models)]
    agent += ["--tls-ca", f"{files}/ca.crt", "--state", f"{files}/agent"]
    with (files / "agent.log").open("w") as log:
        stranger = cluster.popen(*agent, output=log.fileno())
        try:
            wait_until(lambda: "retrying" in (files / "agent.log").read_text())
            assert "outside" not in release.workers()
        finally:
            stranger.terminate()
            stranger.wait()
        own = ["--tls-cert", f"{files}/agents.crt", "--tls-key", f"{files}/agents.key"]
        joined = cluster.popen(*agent, *own, output=log.fileno())
        try:
            release.wait_for_workers("outside")
        finally:
            joined.terminate()
            joined.wait()


def secured(cluster: Cluster, files: Path) -> Release:
    """Publish the gateway; check that it serves clients with the token only, by both workers."""
    cluster.publish(SERVICE)
    release = Release(cluster, files)
    release.target = f"{BALANCER}:8001"
    release.options = ["--tls-ca", f"{files}/ca.crt"]
    wait_until(lambda: "send credentials" in release.try_to_infer(), 120.0)
    release.options += ["--token-file", f"{files}/token"]
    release.wait_for_workers("n1", "n2")
    release.infer()
    return release
