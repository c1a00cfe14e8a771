"""A server of PostgreSQL in a temporary directory, for tests and benchmarks."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from demo.local_fleet import reserved_port

_USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")


class PostgresqlServer:
    """A running server. Its superuser needs no password on loopback."""

    def __init__(self, programs: Path, data: Path, port: int) -> None:
        self._programs = programs
        self.data = data
        self.port = port
        self._options = f"-p {port} -k {data.parent} -c listen_addresses=127.0.0.1"
        self.address = f"127.0.0.1:{port}"
        self.url = self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{_USER}@{self.address}/{database}"

    def start(self, options: str = "") -> None:
        log = str(self.data / "log")
        self._control("start", "-l", log, "-o", f"{self._options} {options}")

    def listen_everywhere(self) -> None:
        """Restart, and trust users of other machines as well."""
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\n")
        self.stop()
        self.start("-c listen_addresses=*")

    def stop(self, *, check: bool = True) -> None:
        self._control("stop", "-m", "immediate", check=check)

    def execute(self, statements: str, database: str = "postgres") -> None:
        psql = [str(self._programs / "psql"), "--quiet", "--command", statements]
        command = [*psql, self.url_of(database)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def rows(self, query: str) -> list[str]:
        command = [str(self._programs / "psql"), "--no-align", "--tuples-only", "-c", query]
        done = subprocess.run([*command, self.url], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    def clear(self, database: str = "postgres") -> None:
        self.execute("DROP SCHEMA IF EXISTS synergai CASCADE", database)

    def create(self) -> None:
        self.run("initdb", "-A", "trust", "-U", _USER, "--no-sync")

    def _control(self, action: str, *options: str, check: bool = True) -> None:
        self.run("pg_ctl", action, "-w", "-s", *options, check=check)

    def run(self, program: str, *options: str, check: bool = True) -> None:
        self._as_user([str(self._programs / program), "-D", str(self.data), *options], check=check)

    def shell(self, command: str) -> None:
        """Execute a command of a shell on the server's machine, as its user."""
        self._as_user(["bash", "-c", command])

    def _as_user(self, command: Sequence[str], *, check: bool = True) -> None:
        if os.geteuid() == 0:  # it refuses to run as root
            user = pwd.getpwnam(_USER)
            change = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"]
            command = [*change, "--clear-groups", *command]
        # What programs of the server connect to, unless they are told otherwise.
        environment = {
            **os.environ,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": _USER,
            "PATH": f"{self._programs}:{os.environ['PATH']}",
        }
        # Its log is a file: the server would hold a pipe open.
        subprocess.run(command, check=check, cwd="/", stdout=subprocess.DEVNULL, env=environment)


def find_programs() -> Path | None:
    """Return the newest folder of PostgreSQL's server programs; None if there is none."""
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


@contextlib.contextmanager
def running_server(programs: Path) -> Iterator[PostgresqlServer]:
    """Run a new server until the context ends."""
    with _new_server(programs) as server:
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def synchronous_standby(programs: Path, server: PostgresqlServer) -> Iterator[None]:
    """Let the commits of a server wait for a standby until the context ends."""
    with _new_server(programs) as standby:
        source = f"host=127.0.0.1 port={server.port} user={_USER} application_name=standby"
        options = ("--write-recovery-conf", "--checkpoint", "fast")
        standby.run("pg_basebackup", "--dbname", source, *options)
        standby.start()
        try:
            server.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            server.execute("SELECT pg_reload_conf()")
            while server.rows("SELECT sync_state FROM pg_stat_replication") != ["sync"]:
                time.sleep(0.02)
            yield
        finally:
            standby.stop()


@contextlib.contextmanager
def _new_server(programs: Path) -> Iterator[PostgresqlServer]:
    with tempfile.TemporaryDirectory() as directory, reserved_port() as port:
        if os.geteuid() == 0:
            shutil.chown(directory, _USER)
        yield PostgresqlServer(programs, Path(directory) / "data", port)
