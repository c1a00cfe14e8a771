"""A server of PostgreSQL in a temporary directory, for tests and benchmarks."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from synergai.testing import reserved_port

_USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")


class PostgresqlServer:
    """A running server. Its superuser needs no password on loopback."""

    def __init__(self, programs: Path, data: Path, port: int) -> None:
        self._programs = programs
        self._data = data
        self._options = f"-p {port} -k {data} -c listen_addresses=127.0.0.1"
        self.address = f"127.0.0.1:{port}"
        self.url = self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{_USER}@{self.address}/{database}"

    def start(self, options: str = "") -> None:
        log = str(self._data / "log")
        self._control("start", "-l", log, "-o", f"{self._options} {options}")

    def stop(self) -> None:
        self._control("stop", "-m", "immediate")

    def execute(self, statements: str) -> None:
        """Execute statements as the superuser."""
        command = [str(self._programs / "psql"), "--quiet", "--command", statements, self.url]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def rows(self, query: str) -> list[str]:
        """Return the rows of a query as text."""
        command = [str(self._programs / "psql"), "--no-align", "--tuples-only", "-c", query]
        done = subprocess.run([*command, self.url], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    def clear(self) -> None:
        """Remove the journal from the database."""
        self.execute("DROP SCHEMA IF EXISTS synergai CASCADE")

    def create(self) -> None:
        self.run("initdb", "-A", "trust", "-U", _USER, "--no-sync")

    def _control(self, action: str, *options: str) -> None:
        self.run("pg_ctl", action, "-w", "-s", *options)

    def run(self, program: str, *options: str) -> None:
        command: Sequence[str] = [str(self._programs / program), "-D", str(self._data), *options]
        if os.geteuid() == 0:  # it refuses to run as root
            user = pwd.getpwnam(_USER)
            change = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"]
            command = [*change, "--clear-groups", *command]
        # Its log is a file: the server would hold a pipe open.
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)


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
    with tempfile.TemporaryDirectory() as directory, reserved_port() as port:
        if os.geteuid() == 0:
            shutil.chown(directory, _USER)
        server = PostgresqlServer(programs, Path(directory) / "data", port)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
