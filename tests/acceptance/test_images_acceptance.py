"""Images: their size and contents, a gateway and an agent that run in them, and arm64."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

from deploy.images.build import build
from profiler.zoo import recipes as zoo
from synergai.domain import EngineName
from tests.acceptance.images import build_base, output
from tests.waiting import wait_until

PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap", "qemu-aarch64-static")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"),
    pytest.mark.skipif(find_spec("pip") is None, reason="needs pip"),
]
LIMITS = {"gateway": 280e6, "agent-onnxruntime": 350e6}
READY_CPU_S = 3.0
PODMAN = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
SAFE = ["--network", "host", "--read-only", "--cap-drop", "all"]
SAFE += ["--security-opt", "no-new-privileges"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_base(tmp_path_factory.mktemp("base"), "amd64")


@contextmanager
def contents(image: str) -> Iterator[Path]:
    container = output("buildah", "from", "--pull-never", image).strip()
    try:
        yield Path(output("buildah", "mount", container).strip())
    finally:
        output("buildah", "rm", container)


def inspect(image: str) -> tuple[str, int]:
    text = output("podman", "image", "inspect", "--format", "{{.Id}} {{.Size}}", image)
    digest, size = text.split()
    return digest, int(size)


@pytest.mark.parametrize("role", LIMITS)
def test_image_is_small_complete_and_the_same_when_built_again(base: str, role: str) -> None:
    image = build(role, "amd64", base)
    digest, size = inspect(image)
    assert size <= LIMITS[role]
    assert inspect(build(role, "amd64", base))[0] == digest
    with contents(image) as root:
        bill = json.loads((root / "usr/share/synergai/sbom.cdx.json").read_text())
        listed = {f"{each['name']}-{each['version']}".lower() for each in bill["components"]}
        found = (root / "opt/synergai").glob("*.dist-info/METADATA")
        assert len(listed) == len(list(found))
        assert "synergai-0.1.0" in listed


def test_gateway_and_agent_serve_from_images_without_privileges(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "containers.conf").write_text(PODMAN)
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    models = tmp_path / "models"
    zoo.build(EngineName("onnx_identity"), models)
    subprocess.run(["chmod", "-R", "a+rX", str(tmp_path)], check=True)
    gateway, agent, tools = (
        build(role, "amd64", base) for role in ("gateway", "agent-onnxruntime", "tools")
    )
    names = ["synergai-test-gateway", "synergai-test-agent"]
    run = ["podman", "run", "--detach", *SAFE]
    try:
        output(*run, "--name", names[0], gateway, "gateway", "--state", "/var/lib/synergai")
        wait_until(lambda: is_ready("http://127.0.0.1:8002/healthz"), 30.0)
        pid = output("podman", "inspect", "--format", "{{.State.Pid}}", names[0])
        times = psutil.Process(int(pid)).cpu_times()
        assert times.user + times.system <= READY_CPU_S
        options = ["--volume", f"{models}:/models:ro", "--name", names[1], agent]
        output(*run, *options, "agent", "--models", "/models", "--state", "/var/lib/synergai")
        client = ["podman", "run", "--rm", *SAFE, tools]
        wait_until(lambda: "onnx_identity" in output(*client, "workers"))
        answer = json.loads(
            output(*client, "infer", "onnx_identity", "--json", "--input", "x=[1.5]")
        )
        assert answer["outputs"]["y"]["data"] == [1.5]
    finally:
        subprocess.run(["podman", "rm", "--force", "--ignore", "--volumes", *names], check=False)


def is_ready(url: str) -> bool:
    try:
        urlopen(url, timeout=5).close()
    except (URLError, ConnectionError):
        return False
    return True


@pytest.mark.parametrize("role", LIMITS)
def test_image_for_arm64_starts_in_an_emulated_machine(tmp_path: Path, role: str) -> None:
    image = build(role, "arm64", build_base(tmp_path, "arm64"))
    with contents(image) as root:
        command = ["qemu-aarch64-static", "-L", str(root), str(root / "usr/bin/python3.11")]
        program = f"import sys; sys.path.insert(0, '{root}/opt/synergai');"
        program += "sys.argv = ['synergai', sys.argv[1], '--help'];"
        program += "from synergai.__main__ import main; main()"
        text = output(*command, "-c", program, role.partition("-")[0])
    assert "Every option can also be set by an environment variable" in " ".join(text.split())
