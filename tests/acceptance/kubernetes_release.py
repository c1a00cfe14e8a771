"""A release of the chart in a cluster on this machine, and what its clients see of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.images.build import ROOT, build
from profiler.zoo.recipes import build as build_engine
from synergai.domain import EngineName
from tests.acceptance.images import build_base, output
from tests.acceptance.kubernetes_cluster import BALANCER, NODES, Cluster, missing_programs
from tests.waiting import wait_until

LACKING: Final = missing_programs("helm", "buildah", "mmdebstrap")
needs_cluster: Final = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        bool(LACKING),
        reason=f"needs {', '.join(LACKING)} on PATH, or in the folder KUBERNETES_BIN",
    ),
    pytest.mark.skipif(find_spec("pip") is None, reason="needs pip"),
]
CHART: Final = str(ROOT / "deploy" / "kubernetes" / "chart")
SERVICES: Final = ("synergai-gateway", "synergai-hub", "synergai-gateway-0", "synergai-gateway-1")
ENGINE: Final = "onnx_identity"
PAUSE: Final = "localhost/synergai-test-pause:1"
VERSION: Final = "0.1.0-amd64"
QUERIES: Final = 100_000
MODELS: Final = "/var/lib/synergai/models"
SIGN: Final = f"""
new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
$new -x509 -subj /CN=authority -keyout ca.key -out ca.crt
sign="openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -copy_extensions copy"
names=subjectAltName=DNS:synergai-gateway,DNS:synergai-hub,IP:{BALANCER}
$new -subj /CN=gateway -addext $names -keyout tls.key | $sign -out tls.crt
$new -subj /CN=agents -keyout agents.key | $sign -out agents.crt
"""
"""Makes an authority, and certificates of gateway and agents."""


def group(name: str = "x86", **changes: str) -> list[str]:
    """Return the options of Helm for a group of agents with the nodes' models."""
    values = {"workerClass": "x86", r"nodeSelector.synergai/worker": "x86"}
    values |= {"models.hostPath": MODELS, **changes}
    return [
        part
        for key, value in values.items()
        for part in ("--set", f"agents.groups.{name}.{key}={value}")
    ]


class Release:
    """What clients of the gateway see."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        for name in SERVICES[1:]:
            if name in cluster.kubectl("get", "services"):
                cluster.name_service(name)
        self.address = cluster.name_service(SERVICES[0])
        self.target = f"{self.address}:8001"
        self.variables: list[str] = []

    def command(self, *arguments: str) -> list[str]:
        program = [sys.executable, "-m", "synergai"]
        return ["env", *self.variables, *program, *arguments, "--target", self.target]

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

    def submit(self, count: int) -> None:
        """Submit jobs, which take longer than what the test does."""
        for _ in range(count):
            sizes = ["--queries", str(QUERIES), "--qos", "600"]
            self.cluster.run(*self.command("submit", ENGINE, *sizes, "--detach"))

    def start_load(self, seconds: int, rate: int = 50) -> subprocess.Popen[str]:
        load = ["load", ENGINE, "--rate", str(rate), "--deadline-ms", "5000"]
        load += ["--duration", str(seconds), "--json"]
        return self.cluster.popen(*self.command(*load), output=subprocess.PIPE)

    def assert_jobs_are_complete(self, count: int) -> None:
        def done() -> list[int]:
            jobs = self.ask("jobs", "list", "--limit", "1000")
            return [each["queries_done"] for each in jobs if each["state"] == "succeeded"]

        wait_until(lambda: len(done()) == count, 300.0)
        assert done() == [QUERIES] * count


def report(load: subprocess.Popen[str]) -> Any:
    printed, _ = load.communicate()
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    keys = ("requests", "met", "late", "expired", "rejected", "failed", "first_failure")
    print({key: found.get(key) for key in keys})
    return found


@contextmanager
def running_cluster(images_in: Path, cluster_in: Path) -> Iterator[Cluster]:
    """Run a cluster that has the images, and the engine on both nodes."""
    base = build_base(images_in, "amd64")
    (images_in / "Containerfile").write_text(
        f'FROM {base}\nENTRYPOINT ["python3.11", "-c", "import signal; signal.pause()"]\n'
    )
    output("buildah", "build", "--quiet", "--format", "oci", "--tag", PAUSE, str(images_in))
    images = [PAUSE, *(build(role, "amd64", base) for role in ("gateway", "agent-onnxruntime"))]
    for number, name in enumerate(images):
        output("buildah", "push", "--quiet", name, f"oci-archive:{images_in}/{number}.tar:{name}")
    models = images_in / "models"
    build_engine(EngineName(ENGINE), models)
    subprocess.run(["chmod", "-R", "a+rX", str(models)], check=True)
    with Cluster(cluster_in, models, PAUSE) as cluster:
        for number in range(len(images)):
            cluster.import_image(images_in / f"{number}.tar")
        for role in ("gateway", "agent-onnxruntime"):
            name = f"localhost/synergai-{role}"
            cluster.tag_image(f"{name}:{VERSION}", f"{name}:next")
        yield cluster


@contextmanager
def provided_volume(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Provide the volume that a gateway claims, on labelled nodes; remove all in the end."""
    state = folder / "state"
    state.mkdir()
    state.chmod(0o777)
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(state), "type": "Directory"},
        "claimRef": {"namespace": "default", "name": SERVICES[0]},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "gateway"}}
    cluster.apply({**volume, "spec": spec})
    for node in NODES:
        cluster.kubectl("label", "node", node, "synergai/worker=x86", "--overwrite")
    yield
    cluster.run("helm", "uninstall", "synergai", "--wait", check=False)
    everything = "daemonset,deployment,statefulset,service,serviceaccount,role,rolebinding"
    everything += ",poddisruptionbudget,networkpolicy,pvc"
    cluster.kubectl("delete", everything, "--selector", "app.kubernetes.io/name=synergai")
    cluster.kubectl("delete", "pod", "--all")
    cluster.kubectl("delete", "pv", "gateway")
