"""KServe's unmodified inference client, in an environment of its own for its dependencies."""

import subprocess
import venv
from pathlib import Path

from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo
from synergai.domain import EngineName

KSERVE = "kserve==0.21.0"
SCRIPT = Path(__file__).with_name("kserve_script.py")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kserves_client_infers_and_controls_engines(tmp_path: Path) -> None:
    zoo.build(EngineName("onnx_identity"), tmp_path / "models")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", KSERVE)
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        fleet.start_agent("w1", models=tmp_path / "models", options=["--threads", "1"])
        fleet.wait_for_workers(1)
        run(python, str(SCRIPT), fleet.address, fleet.http_address)
