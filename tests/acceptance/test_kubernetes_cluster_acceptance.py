"""Chart and base on a real Kubernetes: serving, drained nodes, upgrades, and agents from outside.

Commands come from the guide. The agents are two, one on each node.
"""

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_urlsafe
from typing import Final

import pytest

from deploy.images.build import ROOT
from profiler.zoo.recipes import build as build_engine
from synergai.domain import EngineName
from tests.acceptance import kubernetes_release
from tests.acceptance.kubernetes_cluster import BALANCER, Cluster
from tests.guides import blocks
from tests.waiting import wait_until

pytestmark = kubernetes_release.needs_cluster
JOBS: Final = 30
KUBERNETES: Final = blocks("kubernetes")["Install"]
TABLE: Final = """
[[clients]]
name = "ops"
token_sha256 = "{}"

[[grants]]
to = ["ops"]
roles = ["infer", "submit", "observe"]
"""
# The base is of policy/v1, which Kubernetes 1.20 does not know.
GRACE_OF_PROBE: Final = (
    "/spec/template/spec/containers/0/livenessProbe/terminationGracePeriodSeconds"
)
# What Kubernetes 1.20 lacks is replaced or removed.
OVERLAY: Final = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "resources": ["base"],
    "patches": [
        {
            "target": {"kind": "PodDisruptionBudget"},
            "patch": '[{"op": "replace", "path": "/apiVersion", "value": "policy/v1beta1"}]',
        },
        *(
            {
                "target": {"kind": kind},
                "patch": json.dumps([{"op": "remove", "path": GRACE_OF_PROBE}]),
            }
            for kind in ("StatefulSet", "DaemonSet")
        ),
        {
            "target": {"kind": "Service"},
            "patch": '[{"op": "replace", "path": "/spec/type", "value": "LoadBalancer"}]',
        },
    ],
}


@pytest.fixture
def files(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Create the secrets by the guide's commands; return the folder of their files."""
    subprocess.run(
        ["bash", "-ec", kubernetes_release.SIGN], cwd=tmp_path, check=True, capture_output=True
    )
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
    values = ["--set", "insecure=true", *kubernetes_release.group()]
    values += ["--set", r"gateway.pod.nodeSelector.kubernetes\.io/hostname=n1"]
    cluster.run("helm", "install", "synergai", kubernetes_release.CHART, *values)
    release = kubernetes_release.Release(cluster, tmp_path)
    release.wait_for_workers("n1", "n2")
    release.infer()

    # One worker alone has to carry it, also on a machine that does other work: else requests are
    # refused that it is not expected to complete in time.
    load = release.start_load(20, rate=10)
    time.sleep(3)
    for line in blocks("production")["Drained node"]:
        cluster.run(*shlex.split(line))
        if line.startswith("kubectl drain"):
            wait_until(lambda: "n2" not in release.workers())
    found = kubernetes_release.report(load)
    assert found["met"] == found["requests"]
    release.wait_for_workers("n1", "n2")

    release.submit(JOBS)
    load = release.start_load(30)
    time.sleep(3)
    [line] = [each for each in blocks("kubernetes")["Upgrade"] if "helm" in each]
    began = time.monotonic()
    cluster.run("bash", "-c", f"cd {ROOT} && {line.replace('TAG', 'next')}")
    release.wait_for_workers("n1", "n2")
    print(f"upgraded after {time.monotonic() - began:.1f} s")
    found = kubernetes_release.report(load)
    assert found["met"] + found["failed"] == found["requests"]
    images = {
        container["image"]
        for pod in cluster.get("pods")["items"]
        for container in pod["spec"]["containers"]
    }
    assert all(image.endswith(":next") for image in images)
    release.assert_jobs_are_complete(JOBS)


@pytest.mark.usefixtures("volume")
def test_base_serves_clients_with_a_token_only(cluster: Cluster, files: Path) -> None:
    overlay = files / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(json.dumps(OVERLAY))
    subprocess.run(
        ["cp", "-r", f"{kubernetes_release.CHART}/../base", str(overlay / "base")], check=True
    )
    cluster.kubectl("apply", "--kustomize", str(overlay))
    secured(cluster, files)


@pytest.mark.usefixtures("volume")
def test_agents_outside_of_the_cluster_join_the_secured_chart(
    cluster: Cluster, files: Path
) -> None:
    [install] = [line for line in KUBERNETES if line.startswith("helm install")]
    for service in ("service", "agentService"):
        install += f" --set gateway.{service}.type=LoadBalancer"
    install = install.replace("REGISTRY", "localhost")
    cluster.run("bash", "-c", f"cd {ROOT} && {install}")
    release = secured(cluster, files)
    models = files / "models"
    build_engine(EngineName(kubernetes_release.ENGINE), models)
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


def secured(cluster: Cluster, files: Path) -> kubernetes_release.Release:
    """Publish the gateway; check that it serves clients with the token only, by both workers."""
    for name in kubernetes_release.SERVICES[:2]:
        cluster.publish(name)
    release = kubernetes_release.Release(cluster, files)
    release.target = f"{BALANCER}:8001"
    release.variables = [f"SYNERGAI_TLS_CA={files}/ca.crt"]
    wait_until(lambda: "send credentials" in release.try_to_infer(), 120.0)
    release.variables.append(f"SYNERGAI_TOKEN_FILE={files}/token")
    release.wait_for_workers("n1", "n2")
    release.infer()
    return release
