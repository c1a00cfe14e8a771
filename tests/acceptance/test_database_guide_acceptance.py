"""The commands of the guide to PostgreSQL, as they are written.

Machines and folders are replaced by servers and folders of the test, systemctl by their processes.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from demo.local_fleet import LocalFleet, reserved_port
from synergai.profiles.store import DictionaryStore
from synergai.runtime.paths import dictionary_path
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.cores import new_entry
from tests.guides import blocks
from tests.postgresql import PostgresqlServer, find_programs
from tests.waiting import wait_until

BLOCKS = blocks("postgresql")


class Machine:
    """Machines `a` and `b` of a database, and a gateway."""

    def __init__(self, programs: Path, folder: Path, ports: tuple[int, int], fleet: Path) -> None:
        self.folder = folder
        self.a, self.b = (
            PostgresqlServer(programs, folder / name, port)
            for name, port in zip("ab", ports, strict=True)
        )
        for name in ("backups/wal", "lost"):
            (folder / name).mkdir(parents=True)
            if os.geteuid() == 0:
                shutil.chown(folder / name, "postgres")
                shutil.chown((folder / name).parent, "postgres")
        self.a.create()
        self.a.start()
        self.a.execute("CREATE ROLE replicator LOGIN REPLICATION")
        addresses = f"{self.a.address},{self.b.address}"
        url = f"postgresql://postgres@{addresses}/postgres?target_session_attrs=read-write"
        self.fleet = LocalFleet(fleet)
        self._options = ["--journal", url]
        state = fleet / "gateway"
        state.mkdir(parents=True)
        with DictionaryStore(dictionary_path(state)) as dictionary:
            dictionary.put_all([new_entry("echo", "edge", 10.0)])  # makes the engine known
        self.start()

    def start(self) -> None:
        self.fleet.start_gateway(self._options)

    def stop(self) -> None:
        assert self.fleet.gateway is not None
        self.fleet.gateway.terminate()
        self.fleet.gateway.wait()

    def lose(self) -> None:
        """Stop the database; the gateway notices."""
        self.a.stop()
        assert self.fleet.gateway is not None
        self.fleet.gateway.wait(30)

    def run(self, heading: str, server: PostgresqlServer, **replaced: str) -> None:
        def restart() -> None:
            self.lose()
            server.start()
            self.start()

        services: dict[str, Callable[[], None]] = {
            "systemctl stop synergai-gateway": self.stop,
            "systemctl start synergai-gateway": self.start,
            "systemctl restart postgresql": restart,
            "systemctl stop postgresql": server.stop,
            "systemctl start postgresql": server.start,
        }
        for line in BLOCKS[heading]:
            if line in services:
                services[line]()
            else:
                self._shell(line, server, replaced)

    def _shell(self, command: str, server: PostgresqlServer, replaced: dict[str, str]) -> None:
        texts = {
            "/var/lib/postgresql/15/main": str(server.data),
            "/backups": str(self.folder / "backups"),
            "/lost": str(self.folder / "lost"),
            "host=a ": f"host=127.0.0.1 port={self.a.port} ",
            "--host a ": f"--host 127.0.0.1 --port {self.a.port} ",
            "--host b ": f"--host 127.0.0.1 --port {self.b.port} ",
            **replaced,
        }
        for text, replacement in texts.items():
            command = command.replace(text, replacement)
        server.shell(command)

    def submit(self) -> str:
        with grpc.insecure_channel(self.fleet.address) as channel:
            spec = jobs_pb2.JobSpec(engine="echo", queries=5)
            request = jobs_pb2.SubmitRequest(spec=spec)
            stub = jobs_pb2_grpc.JobsStub(channel)
            return stub.Submit(request, timeout=30, wait_for_ready=True).id

    def jobs(self) -> set[str]:
        with grpc.insecure_channel(self.fleet.address) as channel:
            stub = jobs_pb2_grpc.JobsStub(channel)
            listed = stub.List(jobs_pb2.ListRequest(limit=100), timeout=30, wait_for_ready=True)
        return {job.id for job in listed.jobs}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: neither pg_ctl nor /usr/lib/postgresql")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        ports = stack.enter_context(reserved_port()), stack.enter_context(reserved_port())
        machine = Machine(programs, folder, ports, tmp_path)
        stack.callback(machine.b.stop, check=False)
        stack.callback(machine.a.stop, check=False)
        with machine.fleet:
            yield machine


def test_database_returns_to_a_point_in_time(machine: Machine) -> None:
    machine.run("Back up the database", machine.a)
    kept = machine.submit()
    now = datetime.now(UTC).isoformat(sep=" ")
    lost = machine.submit()
    [segment] = machine.a.rows("SELECT pg_walfile_name(pg_switch_wal())")
    archived = "SELECT last_archived_wal FROM pg_stat_archiver"
    wait_until(lambda: machine.a.rows(archived) == [segment])
    assert machine.jobs() == {kept, lost}
    machine.run("Return to a point in time", machine.a, **{"2027-01-31 12:00:00 UTC": now})
    assert machine.jobs() == {kept}


def test_standby_that_is_promoted_has_every_acknowledged_job(machine: Machine) -> None:
    machine.run("Add a synchronous standby", machine.b)
    wait_until(lambda: machine.a.rows("SELECT sync_state FROM pg_stat_replication") == ["quorum"])
    accepted = {machine.submit() for _ in range(5)}
    machine.lose()
    machine.run("Fail over", machine.b)
    machine.start()
    assert machine.jobs() == accepted
