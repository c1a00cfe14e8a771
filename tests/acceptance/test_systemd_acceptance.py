"""The units: valid as shipped, and of services that are started, killed and restarted.

systemd-analyze has to be of version 252 or newer. Services run under a Debian that is booted in a
systemd-nspawn container with a private network; where that is not possible, their tests skip.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from profiler.zoo import recipes as zoo
from tests.acceptance.debian_root import (
    CACHE,
    PROGRAMS,
    DebianRoot,
    MissingPrerequisite,
    require_programs,
)
from tests.waiting import wait_until

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


@pytest.mark.parametrize("name", [*EXPOSURE, "synergai-power@.service"])
def test_exposure_of_a_service_is_limited(units: Path, name: str) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(units / name))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    print(f"\n{name}: exposure {found[1]}")
    assert float(found[1]) <= EXPOSURE.get(name, 5.0)


PACKAGES: Final = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv")
SERVICES: Final = ("synergai-gateway", "synergai-agent")
MODELS: Final = "var/lib/synergai-agent/models"
BOOT_S: Final = 60.0
LOG: Final = "console.log"


class Container:
    """A booted container. As a context manager, boots it and powers it off.

    Raises:
        Missing: on entering, if it does not boot.
    """

    def __init__(self, root: DebianRoot, log: Path) -> None:
        self._root = root
        self._log = log
        self._leader = 0

    def __enter__(self) -> Container:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    # Independent of this machine's own service manager, if any.
                    *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit"),
                    *("--private-network", "--console=read-only", "--machine=synergai-acceptance"),
                    *("--directory", str(self._root.path), "--boot"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_booted()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._leader and self._process.poll() is None:
            self.run("systemctl", "poweroff", check=False)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, *command: str, check: bool = True) -> str:
        enter = ["nsenter", f"--target={self._leader}", "--all", "/usr/bin/env", "-i"]
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run([*enter, path, *command], capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            journal = self.run("journalctl", "--no-pager", "-n", "40", check=False)
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}\n{journal}")
        return done.stdout.strip()

    def _wait_booted(self) -> None:
        deadline = time.monotonic() + BOOT_S
        state = ""
        while state not in ("running", "degraded"):  # getty may fail without a terminal
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self._log.read_text("utf-8", "replace").strip().splitlines()
                raise MissingPrerequisite(
                    f"systemd-nspawn did not boot ({state or 'no answer'}): {text[-3:]}"
                )
            time.sleep(0.2)
            self._leader = self._find_leader()
            if self._leader:
                state = self.run("systemctl", "is-system-running", check=False)

    def _find_leader(self) -> int:
        """Return the process id, on the host, of the container's init process."""
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        done = subprocess.run(["cat", children], capture_output=True, text=True, check=False)
        found = done.stdout.split()
        return int(found[0]) if found else 0


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    root = DebianRoot(CACHE / "acceptance" / "systemd", "amd64")
    needed = {"systemd-nspawn": "systemd-container", "debootstrap": "debootstrap"}
    try:
        require_programs({**needed, "nsenter": "util-linux", "dpkg-deb": "dpkg"})
        root.create(PACKAGES)
        root.install("gateway,agent,onnxruntime,client", "x86_64")
        _prepare(root)
        with Container(root, tmp_path_factory.mktemp("boot") / LOG) as booted:
            yield booted
    except MissingPrerequisite as error:
        pytest.skip(str(error))


def _prepare(root: DebianRoot) -> None:
    """Remove files of an earlier run; add the gateway's unit and an engine."""
    for left in ("etc/synergai", "var/lib/synergai-agent", "var/lib/private/synergai-gateway"):
        shutil.rmtree(root.path / left, ignore_errors=True)
    for unit in (root.path / "etc/systemd/system").rglob("synergai*"):
        unit.unlink(missing_ok=True)
    shutil.copy(SHIPPED / "synergai-gateway.service", root.path / "etc/systemd/system")
    zoo.build("onnx_identity", root.path / MODELS)


def unit_property(container: Container, service: str, name: str) -> str:
    return container.run("systemctl", "show", "--value", f"--property={name}", service)


def job_succeeds(container: Container) -> bool:
    """Return whether a job submitted to the gateway succeeds."""
    submit = [f"{PROGRAMS}/synergai", "submit", "onnx_identity", "--queries", "100"]
    answer = container.run(*submit, "--watch", "--json", check=False)
    return bool(answer) and json.loads(answer)["state"] == "succeeded"


def test_both_services_start_serve_and_restart_after_a_kill(container: Container) -> None:
    container.run("systemctl", "enable", "--now", "synergai-gateway")
    install = [f"{PROGRAMS}/synergai", "agent", "install", "--gateway", "127.0.0.1:8010"]
    container.run(
        *install, "--worker-class", "container", "--power", "none", "--programs", PROGRAMS
    )
    assert [unit_property(container, service, "ActiveState") for service in SERVICES] == [
        "active"
    ] * 2
    wait_until(lambda: job_succeeds(container), 30.0)

    for service in SERVICES:
        before = unit_property(container, service, "MainPID")
        container.run("systemctl", "kill", "--signal=KILL", service)
        began = time.monotonic()

        def is_back(service: str = service, before: str = before) -> bool:
            pid = unit_property(container, service, "MainPID")
            return unit_property(container, service, "ActiveState") == "active" and pid not in (
                "0",
                before,
            )

        wait_until(is_back, 30.0)
        assert unit_property(container, service, "NRestarts") == "1"
        print(f"\n{service}: back after {time.monotonic() - began:.1f} s")
        wait_until(lambda: job_succeeds(container), 30.0)


def test_agent_is_uninstalled(container: Container) -> None:
    container.run(f"{PROGRAMS}/synergai", "agent", "uninstall", "--purge")
    assert unit_property(container, "synergai-agent", "LoadState") == "not-found"
    count = container.run("sh", "-c", "ls /etc/systemd/system | grep -c agent", check=False)
    assert count == "0"
    left = container.run("sh", "-c", "ls /var/lib /var/lib/private | grep -c agent", check=False)
    assert left == "0"
