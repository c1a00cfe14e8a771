"""A Debian root directory with SynergAI, for this machine's architecture or an emulated one.

Packages come from apt's mirror, wheels from pip's index. Debian roots are cached in the user's
cache directory.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.wheel import CHECKOUT, build_wheel

RELEASE: Final = "bookworm"  # its Python is 3.11
PYTHON: Final = "3.11"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "synergai"
PROGRAMS: Final = "/opt/synergai/bin"
_A_CORE: Final = """\
processor\t: {}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer\t: 0x4e
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0x004
CPU revision\t: 0

"""
"""One core of a Jetson Xavier in ``/proc/cpuinfo``."""
_GLIBC: Final = ("2_28", "2_27", "2_26", "2_17")


class MissingPrerequisite(Exception):
    """A missing prerequisite of the test, and how to install it."""


def require_programs(packages: dict[str, str]) -> None:
    """Check for root and for programs; `packages` maps each program to its Debian package.

    Raises:
        Missing: a program is missing, or the user is not root.
    """
    if os.geteuid() != 0:
        raise MissingPrerequisite("creating a Debian root needs root")
    lacking = [package for program, package in packages.items() if shutil.which(program) is None]
    if lacking:
        raise MissingPrerequisite(f"apt-get install {' '.join(lacking)}")


@dataclass(frozen=True, slots=True)
class DebianRoot:
    """A Debian root directory.

    Attributes:
        path: the directory.
        architecture: Debian's name of the architecture.
        emulator: user-mode emulator for its programs; empty for a native root.
    """

    path: Path
    architecture: str
    emulator: str = ""

    def create(self, packages: Sequence[str]) -> None:
        """Unpack Debian unless it is cached.

        Raises:
            Missing: the mirror cannot be used.
        """
        done = self.path.with_suffix(".complete")
        if done.exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *("debootstrap", "--variant=minbase", f"--arch={self.architecture}"),
            f"--include={','.join(packages)}",
            *(["--foreign"] if self.emulator else []),
            *(RELEASE, str(self.path), *_mirror()),
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise MissingPrerequisite(
                f"debootstrap failed: {made.stdout.strip().splitlines()[-1:]}"
            )
        if self.emulator:
            # Only unpack: package scripts would run for minutes in the emulator, and Python
            # needs no configuration.
            for package in sorted(self.path.glob("var/cache/apt/archives/*.deb")):
                _run(["dpkg-deb", "-x", str(package), str(self.path)])
        done.touch()

    def command(self, *command: str, environment: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs `command` in the root, with a clean environment."""
        clean = ["/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
        inside = [*clean, *environment, *command]
        if not self.emulator:
            return ["chroot", str(self.path), *inside]
        # proot also translates exec calls, so that binfmt_misc need not be configured. Runtimes
        # read /proc/cpuinfo and fail on one of another architecture.
        cpuinfo = self.path.with_suffix(".cpuinfo")
        cpuinfo.write_text("".join(map(_A_CORE.format, range(os.cpu_count() or 1))))
        binds = [f"--bind={path}" for path in ("/dev", "/proc", "/sys", f"{cpuinfo}:/proc/cpuinfo")]
        return ["proot", "-q", self.emulator, "-r", str(self.path), *binds, "-w", "/", *inside]

    def install(self, extras: str, machine: str) -> None:
        """Install SynergAI's wheel for `machine` with the root's own Python and pip."""
        wheels = self.path / "wheels"
        shutil.rmtree(wheels, ignore_errors=True)
        wheel = build_wheel(wheels)
        platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in _GLIBC]
        _run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels)),
                *("--constraint", str(CHECKOUT / "constraints.txt"), "--only-binary=:all:"),
                *(f"--python-version={PYTHON}", *platforms, f"--platform=manylinux2014_{machine}"),
                f"{wheel}[{extras}]",
            ]
        )
        shutil.rmtree(self.path / "opt" / "synergai", ignore_errors=True)
        _run(self.command("/usr/bin/python3", "-m", "venv", "/opt/synergai"))
        pip = [f"{PROGRAMS}/python", "-m", "pip", "install", "--quiet", "--no-index"]
        _run(self.command(*pip, "--find-links=/wheels", f"synergai[{extras}]"))


def _mirror() -> list[str]:
    """Return apt's mirror of the release; empty (debootstrap's default) if it has none."""
    targets = ["apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {RELEASE}"]
    found = subprocess.run(targets, capture_output=True, text=True, check=False)
    return found.stdout.split()[:1]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace")[-2000:]
        raise AssertionError(f"{' '.join(command)} failed: {reason}")
