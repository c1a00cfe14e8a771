"""What operators of a release meet after the first day, on a real Kubernetes."""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from profiler.zoo.recipes import build as build_engine
from synergai.domain import EngineName
from tests.acceptance.kubernetes_cluster import Cluster
from tests.acceptance.kubernetes_release import (
    CHART,
    SERVICES,
    SIGN,
    Release,
    group,
    needs_cluster,
    report,
)
from tests.postgresql import find_programs
from tests.waiting import wait_until

pytestmark = needs_cluster
JOBS: Final = 5
INSECURE: Final = ["--set", "insecure=true"]
ON_N1: Final = ["--set", r"gateway.pod.nodeSelector.kubernetes\.io/hostname=n1"]
UPGRADE: Final = ["helm", "upgrade", "synergai", CHART, "--reset-then-reuse-values", "--wait"]


def install(cluster: Cluster, folder: Path, *values: str) -> Release:
    """Install the chart; return once all pods are ready."""
    cluster.run("helm", "install", "synergai", CHART, *INSECURE, *values)
    release = Release(cluster, folder)  # makes the names that agents look up
    for kind in ("statefulset", "daemonset", "deployment"):
        for each in cluster.get(kind)["items"]:
            cluster.kubectl("rollout", "status", f"{kind}/{each['metadata']['name']}")
    return release


def pods(cluster: Cluster, component: str) -> list[Any]:
    selector = f"app.kubernetes.io/component={component}"
    found: list[Any] = cluster.get("pods", "--selector", selector)["items"]
    return found


def process_of(pod: Any, module: str) -> int:
    """Return the process of a pod that runs a module."""
    [status] = pod["status"]["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text().split("\0")
            if module in command and container in (path / "cgroup").read_text():
                return int(path.name)
        except OSError:  # it has ended
            continue
    raise AssertionError(f"no process of {pod['metadata']['name']} runs {module}")


def start_requests(release: Release, seconds: int, deadline_s: int = 5) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.acceptance.steady_requests", release.target]
    own = [*program, str(seconds), str(deadline_s)]
    return release.cluster.popen(*own, output=subprocess.PIPE)


def restarts(cluster: Cluster, component: str) -> int:
    statuses = (pod["status"].get("containerStatuses", []) for pod in pods(cluster, component))
    return sum(status["restartCount"] for each in statuses for status in each)


def hang(cluster: Cluster, component: str, module: str) -> None:
    """Stop a process of the component; return once it was restarted."""
    began = time.monotonic()
    os.kill(process_of(pods(cluster, component)[0], module), signal.SIGSTOP)
    wait_until(lambda: restarts(cluster, component) == 1, 240.0)
    print(f"{component} restarted after {time.monotonic() - began:.1f} s")


@pytest.mark.usefixtures("volume")
def test_hung_gateway_and_hung_agent_are_restarted(cluster: Cluster, tmp_path: Path) -> None:
    release = install(cluster, tmp_path, *ON_N1, *group())
    release.wait_for_workers("n1", "n2")
    cluster.run("helm", "test", "synergai")
    hang(cluster, "gateway", "gateway.server:GatewayProcess")
    release.wait_for_workers("n1", "n2")
    hang(cluster, "agent-x86", "worker_agent.app:Agent")
    release.wait_for_workers("n1", "n2")
    release.infer()


@pytest.mark.usefixtures("volume")
def test_upgrade_of_agents_fails_no_request_of_engines_that_two_serve(
    cluster: Cluster, tmp_path: Path
) -> None:
    others = group("other", kind="Deployment", replicas="1", **{"models.hostPath": ""})
    release = install(cluster, tmp_path, *ON_N1, *group(), *others)
    release.wait_for_workers("n1", "n2")
    wait_until(lambda: len(release.workers()) == 3, 120.0)
    release.infer()
    gateway = pods(cluster, "gateway")[0]["metadata"]["uid"]
    load = release.start_load(90, rate=20)
    time.sleep(3)
    began = time.monotonic()
    cluster.run(*UPGRADE, "--set", "agents.group.image.tag=next")
    print(f"agents upgraded after {time.monotonic() - began:.1f} s")
    found = report(load)
    assert found["met"] > 0
    assert found["failed"] == 0
    assert pods(cluster, "gateway")[0]["metadata"]["uid"] == gateway
    for component in ("agent-x86", "agent-other"):
        images = {pod["spec"]["containers"][0]["image"] for pod in pods(cluster, component)}
        assert images == {"localhost/synergai-agent-onnxruntime:next"}


@pytest.mark.usefixtures("volume")
def test_jobs_outlive_an_uninstalled_release(cluster: Cluster, tmp_path: Path) -> None:
    release = install(cluster, tmp_path, *ON_N1, *group())
    release.wait_for_workers("n1", "n2")
    release.submit(JOBS)
    cluster.run("helm", "uninstall", "synergai", "--wait")
    wait_until(lambda: not pods(cluster, "gateway"), 120.0)
    assert SERVICES[0] in cluster.kubectl("get", "pvc")
    release = install(cluster, tmp_path, *ON_N1, *group())
    release.wait_for_workers("n1", "n2")
    release.assert_jobs_are_complete(JOBS)


@pytest.mark.usefixtures("volume")
def test_first_request_from_zero_waits_for_the_agent_that_a_scaler_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    wait = ["--set", "gateway.workerWaitSeconds=120"]
    burst = group("burst", kind="Deployment")
    release = install(cluster, tmp_path, *ON_N1, *wait, *burst)
    wait_until(lambda: release.workers(), 120.0)
    release.infer()
    scale = ("scale", "deployment", "synergai-agent-burst", "--replicas")
    cluster.kubectl(*scale, "0")
    wait_until(lambda: not release.workers(), 120.0)
    cluster.run(*UPGRADE, "--set", "gateway.podAnnotations.new=yes")
    assert cluster.get("deployment", "synergai-agent-burst")["spec"]["replicas"] == 0

    began = time.monotonic()
    waiting = start_requests(release, 0, 120)
    metrics = f"http://{release.address}:8002/metrics"
    wait_until(lambda: "synergai_queue_depth 1.0" in cluster.run("curl", "--silent", metrics))
    cluster.kubectl(*scale, "1")
    printed, _ = waiting.communicate()
    print(f"answered after {time.monotonic() - began:.1f} s")
    assert json.loads(printed)["statuses"] == {"OK": 1}


@pytest.mark.usefixtures("volume")
def test_agent_keeps_within_a_part_of_a_core_and_its_memory(
    cluster: Cluster, tmp_path: Path
) -> None:
    built = tmp_path / "models"
    build_engine(EngineName("onnx_resnet50_op11"), built)
    subprocess.run(["chmod", "-R", "a+rX", str(built)], check=True)
    limits = {
        "resources.requests.cpu": "100m",
        "resources.limits.cpu": "500m",
        "resources.requests.memory": "300Mi",
        "resources.limits.memory": "600Mi",
        "models.hostPath": str(built),
        "sharedMemory": "64Mi",
    }
    release = install(cluster, tmp_path, *ON_N1, *group(**limits))
    release.wait_for_workers("n1", "n2")
    known = [(worker["cores"], worker["memory_bytes"]) for worker in release.ask("workers")]
    assert known == [(1, 600 << 20)] * 2
    load = ["load", "onnx_resnet50_op11", "--models", str(built), "--json"]
    load += ["--rate", "1", "--duration", "30", "--deadline-ms", "20000"]
    found = report(cluster.popen(*release.command(*load), output=subprocess.PIPE))
    assert found["met"] > 0
    assert found["failed"] == 0
    assert restarts(cluster, "agent-x86") == 0


# --- two gateways -------------------------------------------------------------------------------


@pytest.fixture
def database(cluster: Cluster) -> Iterator[None]:
    """Provide a database in the cluster's network, and its secret."""
    programs = find_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    with TemporaryDirectory() as folder, running_database(cluster, programs, Path(folder)):
        url = "postgresql://postgres@10.1.1.1/postgres"
        secret = ["create", "secret", "generic", "database", f"--from-literal=url={url}"]
        cluster.kubectl(*secret, "--from-literal=password=none")
        yield
        cluster.kubectl("delete", "secret", "database")


@contextmanager
def running_database(cluster: Cluster, programs: Path, folder: Path) -> Iterator[None]:
    shutil.chown(folder, "postgres")
    folder /= "data"
    own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    create = [str(programs / "initdb"), "-A", "trust", "-U", "postgres", "--no-sync", str(folder)]
    subprocess.run([*own, *create], check=True, capture_output=True, cwd="/")
    with (folder / "pg_hba.conf").open("a") as file:
        file.write("host all all 0.0.0.0/0 trust\n")
    serve = [str(programs / "postgres"), "-D", str(folder), "-k", str(folder)]
    with (cluster.folder / "database.log").open("w") as log:
        server = cluster.popen(*own, *serve, "-c", "listen_addresses=*", output=log.fileno())
        try:
            yield
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait()


def leader(cluster: Cluster) -> str:
    """Return the pod that the clients' Service selects, if a gateway leads."""
    selector = cluster.get("service", SERVICES[0])["spec"]["selector"]
    name: str = selector.get("statefulset.kubernetes.io/pod-name", "")
    return name


def statuses_of(requests: subprocess.Popen[str]) -> set[str]:
    printed, _ = requests.communicate()
    print(printed)
    return set(json.loads(printed)["statuses"])


@pytest.mark.usefixtures("volume", "database")
def test_of_two_gateways_the_other_takes_over(cluster: Cluster, tmp_path: Path) -> None:
    two = ["--set", "gateway.journalSecret=database"]
    release = install(cluster, tmp_path, *two, *group())
    wait_until(lambda: leader(cluster), 60.0)
    release.wait_for_workers("n1", "n2")
    release.infer()
    assert {pod["spec"]["nodeName"] for pod in pods(cluster, "gateway")} == {"n1", "n2"}
    release.submit(JOBS)

    requests = start_requests(release, 20)
    time.sleep(3)
    first = leader(cluster)
    cluster.kubectl("delete", "pod", first, "--wait=false")
    assert statuses_of(requests) == {"OK", "UNAVAILABLE"}
    assert leader(cluster) != first

    requests = start_requests(release, 90)
    for change in ([*UPGRADE, "--set", "image.tag=next"], ["helm", "rollback", "synergai", "1"]):
        began = time.monotonic()
        cluster.run(*change, *(["--wait"] if "rollback" in change else []))
        print(f"{change[1]} ended after {time.monotonic() - began:.1f} s")
    # On a slow machine, requests may wait longer for an agent than they have time.
    assert statuses_of(requests) <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
    release.wait_for_workers("n1", "n2")
    release.assert_jobs_are_complete(JOBS)


# --- monitoring ---------------------------------------------------------------------------------

TABLE: Final = """
[[clients]]
name = "prometheus"
token_sha256 = "{}"

[[grants]]
to = ["prometheus"]
roles = ["observe"]
"""


def scrape(monitor: str, secrets: Path) -> dict[str, Any]:
    """Return what Prometheus is told for a ServiceMonitor, as its operator does."""

    def part(pattern: str) -> str:
        found = re.search(pattern, monitor)
        assert found, f"no {pattern} in {monitor}"
        return "/".join(found.groups())

    token = part(r"credentials: {name: (\S+), key: (\S+)}")
    authority = part(r"ca: {secret: {name: (\S+), key: (\S+)}}")
    return {
        "scheme": part(r"scheme: (\S+)"),
        "authorization": {"type": "Bearer", "credentials_file": str(secrets / token)},
        "tls_config": {
            "ca_file": str(secrets / authority),
            "server_name": part(r"serverName: (\S+)"),
        },
    }


def write_secret(cluster: Cluster, name: str, secrets: Path) -> None:
    (secrets / name).mkdir(parents=True)
    for key, value in cluster.get("secret", name)["data"].items():
        (secrets / name / key).write_bytes(base64.b64decode(value))


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
@pytest.mark.usefixtures("volume")
def test_prometheus_scrapes_with_the_credentials_of_the_service_monitor(
    cluster: Cluster, tmp_path: Path
) -> None:
    subprocess.run(["bash", "-ec", SIGN], cwd=tmp_path, check=True, capture_output=True)
    token = token_urlsafe()
    table = TABLE.format(hashlib.sha256(token.encode()).hexdigest())
    (tmp_path / "access.toml").write_text(table)
    for name, *files in (
        ("synergai-tls", "tls.crt", "tls.key", "ca.crt"),
        ("synergai-access", "access.toml"),
    ):
        own = [f"--from-file={tmp_path / file}" for file in files]
        cluster.kubectl("create", "secret", "generic", name, *own)
    cluster.kubectl("create", "secret", "generic", "scraper", f"--from-literal=token={token}")
    values = ["gateway.tlsSecret=synergai-tls", "gateway.accessSecret=synergai-access"]
    values += ["agents.tlsSecret=synergai-tls", "monitoring.serviceMonitor.enabled=true"]
    values += ["monitoring.serviceMonitor.tokenSecret=scraper"]
    options = [part for value in values for part in ("--set", value)]
    try:
        template = ["helm", "template", "synergai", CHART, *options]
        monitor = cluster.run(*template, "--show-only", "templates/monitoring.yaml")
        # Without its definition, Kubernetes does not take a ServiceMonitor.
        unmonitored = [*options, "--set", "monitoring.serviceMonitor.enabled=false"]
        cluster.run("helm", "install", "synergai", CHART, *ON_N1, *unmonitored, "--wait")
        secrets = tmp_path / "secrets"
        for name in ("synergai-tls", "scraper"):
            write_secret(cluster, name, secrets)
        endpoint = scrape(monitor, secrets)
        address = cluster.get("service", SERVICES[0])["spec"]["clusterIP"]
        with running_prometheus(cluster, tmp_path, endpoint, f"{address}:8002"):
            wait_until(lambda: "SynergaiNoWorkers" in alerts(cluster))
            assert "SynergaiGatewayDown" not in alerts(cluster)
            cluster.kubectl("scale", "statefulset", SERVICES[0], "--replicas=0")
            wait_until(lambda: "SynergaiGatewayDown" in alerts(cluster))
            cluster.kubectl("scale", "statefulset", SERVICES[0], "--replicas=1")
            wait_until(lambda: "SynergaiGatewayDown" not in alerts(cluster), 240.0)
            wait_until(lambda: "SynergaiNoWorkers" in alerts(cluster))
    finally:
        cluster.kubectl("delete", "secret", "synergai-tls", "synergai-access", "scraper")


@contextmanager
def running_prometheus(
    cluster: Cluster, folder: Path, endpoint: dict[str, Any], target: str
) -> Iterator[None]:
    """Run Prometheus with the chart's alerts, which wait for two seconds only."""
    rules = (Path(CHART) / "synergai.rules.yml").read_text()
    (folder / "rules.yml").write_text(re.sub(r"for: \w+", "for: 2s", rules))
    job = {"job_name": "synergai", "static_configs": [{"targets": [target]}], **endpoint}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    own = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        server = cluster.popen("prometheus", *own, output=log.fileno())
        try:
            yield
        finally:
            server.terminate()
            server.wait()


def alerts(cluster: Cluster) -> set[str]:
    """Return the names of the alerts that fire."""
    url = "http://127.0.0.1:9090/api/v1/alerts"
    answer = cluster.run("curl", "--silent", url, check=False)
    found = json.loads(answer)["data"]["alerts"] if answer.startswith("{") else []
    return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}
