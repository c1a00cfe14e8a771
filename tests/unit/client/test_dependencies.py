"""Libraries imported by the client SDK, in a separate process."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
import asyncio, sys

NEEDED = {"google", "grpc", "msgspec", "numpy", "synergai", "typing_extensions"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package not in NEEDED | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())

import numpy as np
import synergai

for name in dir(synergai):
    getattr(synergai, name)

async def main():
    async with synergai.Client("127.0.0.1:1", attempts=1) as client:
        inputs = {"x": np.ones(1, np.float32)}
        for call in (
            client.infer("engine", inputs),
            client.infer("engine", {"x": [1.0]}),
            client.submit("engine", queries=1),
            client.job("id").status(),
            client.workers(),
        ):
            try:
                await call
            except synergai.Unavailable:
                continue
            raise AssertionError(f"{call} did not call the gateway")

asyncio.run(main())
with synergai.SyncClient("127.0.0.1:1", attempts=1) as client:
    try:
        client.infer("engine", {"x": [1.0]})
    except synergai.Unavailable:
        pass
"""


def test_extra_of_the_client_installs_only_what_it_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["client"]]
    names = {re.split(r"[^a-z]", requirement)[0] for requirement in requirements}
    assert names == {"grpcio", "msgspec", "numpy", "protobuf"}


def test_client_needs_no_library_of_the_command_line_or_the_services() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
