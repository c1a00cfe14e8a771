"""The commands of the guide to production, as they are written, on a fleet of this machine.

Paths of the service are replaced by folders of the test, and systemctl by the fleet's processes.
The acceptance test of Kubernetes runs the guide's commands for it.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import grpc
import numpy as np
import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai.domain import EngineName
from synergai.errors import Overloaded
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.acceptance.crashes import find_errors
from tests.guides import blocks
from tests.http1 import text_of
from tests.integration.test_versions import put_version
from tests.waiting import wait_until

ENGINE: Final = EngineName("onnx_digits")
QUERIES: Final = 300_000
TABLE: Final = """
[[clients]]
name = "ops"
certificate = "ops.example.org"

[[grants]]
to = ["ops"]
roles = ["operate"]
"""
OPEN_TO_CLIENTS: Final = """
[[grants]]
to = ["anonymous"]
roles = ["infer", "submit", "observe", "operate"]
"""
INPUTS: Final = 3000
FILLER: Final = "/var/lib/synergai-gateway/filler"
BLOCKS: Final = blocks("production")
NOTHING: Final[Mapping[str, Callable[[], None]]] = {}
TESTED: Final = {
    *("Size", "Secure", "Back up", "Restore", "Upgrade"),
    *("Full volume", "Lost state", "Lost worker"),
    "Drained node",  # by the acceptance test of Kubernetes
}


class Machine:
    """A gateway with two workers, for which the guide's commands are executed.

    With an access table, each worker has a row with its token.
    """

    def __init__(self, folder: Path, access: str = "") -> None:
        self.folder = folder
        self.state = folder / "fleet" / "gateway"
        self.models = folder / "models"
        self.fleet = LocalFleet(folder / "fleet")
        for name in ("backups", "lost", "etc"):
            (folder / name).mkdir()
        self._options: list[str] = []
        if access:
            table = folder / "etc" / "access.toml"
            table.write_text(access)
            for name in ("w1", "w2"):
                self.shell(f"synergai access token {name} --worker > {name}.token 2>> {table}")
            self._options = ["--access", str(table)]
        build(ENGINE, self.models)
        self.state.mkdir(parents=True, exist_ok=True)
        self._start_gateway()
        for name in ("w1", "w2"):
            options = ["--threads", "1"]
            if access:
                options += ["--token-file", str(folder / f"{name}.token")]
            self.fleet.start_agent(name, models=self.models, options=options)
        self.fleet.wait_for_workers(2)

    def _start_gateway(self) -> None:
        log = ["--event-log", str(self.state / "events.jsonl")]
        self.fleet.start_gateway([*log, *self._options])

    def start(self) -> None:
        self._start_gateway()
        self.fleet.wait_for_workers(2)

    def stop(self) -> None:
        assert self.fleet.gateway is not None
        self.fleet.gateway.terminate()
        self.fleet.gateway.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def run(self, heading: str, before: Mapping[str, Callable[[], None]] = NOTHING) -> str:
        """Execute the commands below a heading; return what they print.

        Args:
            heading: the heading.
            before: what is checked before a command.
        """
        services: dict[str, Callable[[], None]] = {
            "systemctl stop synergai-gateway": self.stop,
            "systemctl start synergai-gateway": self.start,
            "systemctl restart synergai-gateway": self.restart,
            "systemctl kill --signal=KILL synergai-agent": lambda: self.fleet.kill("w1"),
        }
        printed = ""
        for line in BLOCKS[heading]:
            if line in before:
                before[line]()
            if line in services:
                services[line]()
            else:
                printed += self.shell(line)
        return printed

    def shell(self, command: str) -> str:
        for path, folder in (
            ("/var/lib/synergai-gateway", self.state),
            ("/backups", self.folder / "backups"),
            ("/lost", self.folder / "lost"),
            ("/etc/synergai", self.folder / "etc"),
        ):
            command = command.replace(f" {path}", f" {folder}")
        programs = Path(sys.executable).parent
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "SYNERGAI_TARGET": self.fleet.address,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        fails = "ends with" in command
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def submit(self, queries: int = QUERIES) -> str:
        with synergai.SyncClient(self.fleet.address) as client:
            return client.submit(ENGINE, queries=queries, qos=600.0).id

    def accepts_jobs(self) -> bool:
        try:
            self.submit(10)
        except Overloaded:
            return False
        return True

    def metric(self, name: str) -> float:
        page = text_of(self.fleet.http_address, "/metrics")
        [line] = [each for each in page.splitlines() if each.startswith(name)]
        return float(line.split()[1])

    def job(self, job: str) -> jobs_pb2.Job:
        with grpc.insecure_channel(self.fleet.address) as channel:
            stub = jobs_pb2_grpc.JobsStub(channel)
            return stub.Get(jobs_pb2.GetRequest(job_id=job), timeout=30, wait_for_ready=True)

    def has_ended(self, job: str) -> bool:
        return self.job(job).state >= jobs_pb2.JOB_STATE_SUCCEEDED

    def assert_complete(self, job: str, queries: int = QUERIES) -> None:
        wait_until(lambda: self.has_ended(job))
        assert find_errors(self.job(job), queries) == []


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.fleet:
        yield machine


@pytest.fixture
def restricted(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, OPEN_TO_CLIENTS)
    with machine.fleet:
        yield machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[None]:
    """Put the gateway's state on a disk of 24 MB."""
    state = tmp_path / "fleet" / "gateway"
    state.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(state)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting needs root")
    yield
    subprocess.run(["umount", str(state)], check=True)


def test_every_command_has_a_test() -> None:
    assert BLOCKS.keys() == TESTED


def test_size_is_found_by_simulation_and_by_load(machine: Machine) -> None:
    for _ in range(3):
        machine.assert_complete(machine.submit(1000), 1000)
    printed = machine.run("Size")
    assert "local=" in printed
    assert "goodput" in printed


def test_access_table_is_checked(machine: Machine) -> None:
    (machine.folder / "etc" / "access.toml").write_text(TABLE)
    assert "ops" in machine.run("Secure")


def test_backup_of_a_running_gateway_restores_its_jobs(machine: Machine) -> None:
    job = machine.submit()
    assert "intact" in machine.run("Back up")
    later = machine.submit(10)
    machine.run("Restore")
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        machine.job(later)
    machine.assert_complete(job)


def test_upgrade_loses_no_accepted_work(machine: Machine) -> None:
    job = machine.submit()
    machine.run("Upgrade")
    machine.assert_complete(job)


@pytest.mark.usefixtures("small_disk")
def test_full_volume_stops_new_jobs_only(machine: Machine) -> None:
    job = machine.submit()

    def check_full() -> None:
        machine.shell(f"cat /dev/zero >> {FILLER}  # ends with the reserve's room")
        wait_until(lambda: machine.metric("synergai_journal_writable") == 0)
        wait_until(lambda: machine.metric("synergai_paused_jobs") or machine.has_ended(job))
        with synergai.SyncClient(machine.fleet.address) as client:
            row = np.zeros((1, *digits_shape(client)), np.float32)
            for _ in range(20):
                client.infer(ENGINE, {client.engine(ENGINE).inputs[0].name: row}, deadline=30.0)
        assert "disk is full" in text_of(machine.fleet.http_address, "/healthz")

    printed = machine.run("Full volume", {f"rm {FILLER}": check_full})
    assert "is full" in printed
    wait_until(machine.accepts_jobs)
    wait_until(lambda: machine.metric("synergai_paused_jobs") == 0)
    machine.assert_complete(job)
    assert machine.fleet.gateway is not None
    assert machine.fleet.gateway.poll() is None


def latest(machine: Machine) -> str:
    """Return the version that answers requests which name none."""
    with synergai.SyncClient(machine.fleet.address) as client:
        return client.infer("times", {"x": [1.0]}, deadline=30.0).version


def test_lost_state_is_restored_with_the_fleet_its_pin_and_its_jobs(restricted: Machine) -> None:
    machine, versions = restricted, restricted.folder / "versions"
    for version in (1, 2):
        put_version(versions, version)
    machine.shell(f"synergai engines push {versions}/times/1 --version 1")
    machine.shell("synergai engines rollout times --pin 1")
    machine.shell(f"synergai engines push {versions}/times/2 --version 2")
    with synergai.SyncClient(machine.fleet.address) as client:
        wait_until(lambda: client.ready("times/1") and client.ready("times/2"))
        rows = np.zeros((INPUTS, *digits_shape(client)), np.float32)
        own = client.submit(ENGINE, inputs=rows, qos=600.0).id
    wait_until(lambda: machine.job(own).queries_done > 0)
    job = machine.submit()  # last, as its queries are fast
    wait_until(lambda: machine.job(job).queries_done > 0)
    with suspended(machine.fleet):  # else a slow backup finds the jobs ended
        machine.run("Back up")
        assert not machine.has_ended(job)
    machine.shell("synergai engines rollout times --latest")
    wait_until(lambda: latest(machine) == "2")
    machine.run("Lost state")  # waits for both workers
    wait_until(lambda: latest(machine) == "1")
    for each, queries in ((job, QUERIES), (own, INPUTS)):
        machine.assert_complete(each, queries)
    with synergai.SyncClient(machine.fleet.address) as client:
        results = list(client.job(own).results())
    assert sorted(index for index, _ in results) == list(range(INPUTS))
    assert not [result.error for _, result in results if result.error]


@contextlib.contextmanager
def suspended(fleet: LocalFleet) -> Iterator[None]:
    """Let the agents stand still meanwhile."""
    for agent in fleet.agents.values():
        agent.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for agent in fleet.agents.values():
            agent.send_signal(signal.SIGCONT)


def digits_shape(client: synergai.SyncClient) -> list[int]:
    [tensor] = client.engine(ENGINE).inputs
    return list(tensor.shape[1:])


def test_lost_worker_loses_no_request_and_no_query(machine: Machine) -> None:
    job = machine.submit()
    with subprocess.Popen(
        [sys.executable, "-m", "synergai", "load", ENGINE, "--rate", "50", "--duration", "5"],
        cwd=machine.folder,
        env={**os.environ, "SYNERGAI_TARGET": machine.fleet.address},
    ) as load:
        machine.run("Lost worker")
    assert load.returncode == 0
    machine.assert_complete(job)
