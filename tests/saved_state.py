"""The state of a fleet of an earlier release, which every later one has to open.

``python -m tests.saved_state`` saves that of this version in ``tests/saved_states``. It is of a
gateway that was killed, with

- two versions of an engine in the store, of which the first is pinned,
- a job that runs, and one over inputs that waits.
"""

import hashlib
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

import synergai
from demo.local_fleet import LocalFleet
from tests.integration.test_versions import ENGINE, put_version
from tests.waiting import wait_until

FOLDER: Final = Path(__file__).with_name("saved_states")
WORKER: Final = "w1"
QUERIES: Final = 100_000
INPUTS: Final = 100
TOKEN: Final = "t" * 32
ACCESS: Final = f"""
[[grants]]
to = ["anonymous"]
roles = ["infer", "submit", "observe", "operate"]

[[workers]]
id = "{WORKER}"
token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"
"""
_LEFT_OUT: Final = ("gateway/journal.reserve", "gateway/uploads", f"{WORKER}/fetched")


def start(fleet: LocalFleet) -> None:
    """Start a gateway and a worker."""
    table, token = fleet.directory / "access.toml", fleet.directory / "token"
    table.write_text(ACCESS)
    models = fleet.directory / "models"
    models.mkdir(exist_ok=True)
    fleet.start_gateway(["--access", str(table)])
    token.write_text(TOKEN)
    options = ["--threads", "1", "--token-file", str(token)]
    fleet.start_agent(WORKER, models=models, options=options)


def save(target: Path) -> None:
    """Save the state of this version."""
    with TemporaryDirectory() as name, LocalFleet(Path(name)) as fleet:
        folder = Path(name)
        start(fleet)
        at = ("--target", fleet.address)
        for number in (1, 2):
            put_version(folder / "versions", number)
            pushed = str(folder / "versions" / ENGINE / str(number))
            _run("engines", "push", pushed, "--version", str(number), *at)
            if number == 1:
                _run("engines", "rollout", ENGINE, "--pin", "1", *at)
        with synergai.SyncClient(fleet.address) as client:
            wait_until(lambda: client.ready(f"{ENGINE}/1") and client.ready(f"{ENGINE}/2"))
            job = client.submit(ENGINE, queries=QUERIES)
            wait_until(lambda: job.status().queries_done > 0)
            client.submit(ENGINE, inputs=np.ones((INPUTS, 1), np.float32))
            assert job.status().queries_done < QUERIES
            fleet.kill("gateway")
        fleet.kill(WORKER)
        with tarfile.open(target, "w:gz") as archive:
            for part in ("gateway", WORKER):
                archive.add(folder / part, part, filter=_filter)


def _filter(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name in _LEFT_OUT else member


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "synergai", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    save(FOLDER / f"{version('synergai')}.tar.gz")
