import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.wheel import build_wheel

SERVE = """
import sys
from pathlib import Path

import synergai
from profiler.zoo.recipes import build

sys.path.append(sys.argv[1])
from demo.local_fleet import LocalFleet

assert Path(synergai.__file__).is_relative_to(sys.prefix), synergai.__file__
build("onnx_identity", Path("models"))
with LocalFleet(Path("fleet")) as fleet:
    fleet.start_gateway()
    fleet.start_agent("worker", models=Path("models"), options=["--threads", "1"])
    fleet.wait_for_workers(1)
print("served")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the built wheel and the dependencies of this one, but no checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(folder)
    home = folder / "venv"
    venv.create(home, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Named by a file like this, a folder's own such files are not read: no editable install.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_installed_command_explains_itself(python: Path, tmp_path: Path) -> None:
    assert "deadlines" in run(python, tmp_path, "-m", "synergai", "--help")


def test_installed_command_writes_what_monitoring_needs(python: Path, tmp_path: Path) -> None:
    written = run(python, tmp_path, "-m", "synergai", "gateway", "monitoring", "files").split()
    names = [Path(path).name for path in written]
    assert names == ["synergai.rules.yml", "synergai.json", "alerts.md"]
    assert all((tmp_path / path).stat().st_size for path in written)


def test_installed_gateway_and_agent_find_each_other(python: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert run(python, tmp_path, "-c", SERVE, str(root)) == "served\n"


def test_wheel_has_the_types_and_the_units_of_systemd(python: Path) -> None:
    packages = next(python.parents[1].glob("lib/*/site-packages"))
    assert (packages / "synergai" / "py.typed").is_file()
    assert list((packages / "synergai" / "shipped" / "deploy" / "systemd").glob("*.service"))
