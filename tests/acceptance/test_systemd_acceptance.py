"""Verification of the units by systemd-analyze, version 252 or newer."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.installer import SERVICE, GatewayInstallation
from synergai.runtime.installation import WriteFile
from tests.fake_systemd import put_programs

SHIPPED = Path(__file__).parents[2] / "deploy" / "systemd"
EXPOSURE = {"synergai-gateway.service": 3.0, "synergai-agent.service": 5.0}


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: apt-get install systemd"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Directory with the units, adapted to existing dummy programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("synergai", "synergai-power"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    folder = tmp_path / "units"
    folder.mkdir()
    for unit in SHIPPED.glob("synergai-*"):
        text = unit.read_text("utf-8").replace("/opt/synergai/bin", str(programs))
        (folder / unit.name).write_text(text, "utf-8")
    return folder


def test_units_are_valid(units: Path) -> None:
    done = analyze("verify", *map(str, sorted(units.iterdir())))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_installed_unit_of_the_gateway_is_valid(tmp_path: Path) -> None:
    programs = put_programs(tmp_path, "/bin") / "bin"
    steps = GatewayInstallation(hub="0.0.0.0:8010", insecure=True, programs=str(programs)).steps(
        Path("/")
    )
    [text] = [step.text for step in steps if isinstance(step, WriteFile) and SERVICE in step.path]
    (tmp_path / SERVICE).write_text(text, "utf-8")
    done = analyze("verify", str(tmp_path / SERVICE))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", [*EXPOSURE, "synergai-power@.service"])
def test_exposure_of_a_service_is_limited(units: Path, name: str) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(units / name))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    print(f"\n{name}: exposure {found[1]}")
    assert float(found[1]) <= EXPOSURE.get(name, 5.0)
