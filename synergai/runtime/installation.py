"""Installation and removal of services under systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotFound, NotSupported, Unavailable
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SETTINGS: Final = "/etc/synergai"
UNITS: Final = "/etc/systemd/system"
PROGRAMS: Final = "/opt/synergai/bin"
"""Directory of the programs in the unit files."""
_BOOTED: Final = Path("/run/systemd/system")
"""Exists on machines that systemd has booted, see sd_booted(3)."""
_PRIVATE_PATHS: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  # not used


class Installer:
    """Writes and removes files and runs commands, each at once.

    Args:
        show: shows each step instead of executing it, on any machine and for any user; None
            executes them.
        root: where the files are.

    Raises:
        NotSupported: services cannot be installed or removed here.
    """

    def __init__(self, show: Callable[[str], object] | None = None, root: Path = Path("/")) -> None:
        self._show = show
        self._root = root
        if shutil.which("systemctl") is None or not _BOOTED.is_dir():
            self.require("systemd is not running on this machine")
        if os.geteuid():
            self.require("it needs root; run it with sudo")

    def require(self, problem: str) -> None:
        """Check, before the first step, that nothing prevents the others."""
        if problem and self._show is not None:
            self._show(f"this would fail: {problem}")
        elif problem:
            raise NotSupported(f"nothing was changed: {problem} (--dry-run prints all steps)")

    def write(self, path: str, text: str, *, mode: int = 0o644, keep: bool = False) -> None:
        """Write a file. An existing one is kept (`keep`) or backed up as ``.old``."""
        if self._show is not None:
            kept = ", unless it exists" if keep else ""
            lines = "".join(f"\n    {line}" for line in text.splitlines() if line)
            self._show(f"write {path} ({mode:o}){kept}:{lines}")
            return
        target = _below(self._root, path)
        if target.exists():
            if keep or target.read_text("utf-8") == text:
                return
            target.replace(target.with_name(f"{target.name}.old"))
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text, mode)

    def remove(self, path: str) -> None:
        """Remove a file or directory if it exists."""
        if self._show is not None:
            self._show(f"remove {path}")
            return
        target = _below(self._root, path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def run(self, *command: str, may_fail: bool = False) -> None:
        """Run a command; `may_fail` if it only undoes a step that may not have been executed."""
        if self._show is not None:
            self._show(f"run {' '.join(command)}")
            return
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode and not may_fail:
            reason = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
            raise Unavailable(f"{' '.join(command)} failed: {reason}")


def programs_problem(programs: str, names: Sequence[str], root: Path) -> str:
    """Return why a service cannot run the programs `names` in a directory; empty if it can."""
    if problem := path_problem(programs, "/opt/synergai"):
        return problem
    for name in names:
        if not os.access(_below(root, programs) / name, os.X_OK):
            return f"{programs} has no program {name}; install the wheel there again"
    interpreter = _interpreter(_below(root, programs), root)
    if interpreter and path_problem(interpreter, ""):
        return (
            f"services cannot access the Python of {programs}, {interpreter}; create the "
            "environment with one elsewhere, such as /opt/python (uv: UV_PYTHON_INSTALL_DIR)"
        )
    return ""


def _interpreter(programs: Path, root: Path) -> str:
    """Return the path below `root` of the Python that a virtual environment links to, or empty."""
    link = programs / "python"
    if not link.is_symlink():
        return ""
    path, top = link.resolve(), root.resolve()
    return f"/{path.relative_to(top)}" if path.is_relative_to(top) else str(path)


def path_problem(path: str, instead: str) -> str:
    """Return why a service cannot use a path that is written into its unit; empty if it can."""
    if not path.startswith("/") or any(c in path for c in "\n\"'\\$% "):
        return f"{path!r} must be an absolute path without spaces, quotes, '$' and '%'"
    if path.startswith(tuple(f"{private}/" for private in _PRIVATE_PATHS)):
        return f"the service cannot access {path}, a private directory; use another, like {instead}"
    return ""


def read_unit(name: str, programs: str = PROGRAMS) -> str:
    """Return a file of ``deploy/systemd``."""
    return read_shipped(f"deploy/systemd/{name}").replace(f"{PROGRAMS}/", f"{programs}/")


def read_shipped(path: str) -> str:
    """Return a file of the repository that the wheel has as well, by its path there."""
    package = Path(__file__).parents[1]
    for root in (package / "shipped", package.parent):
        if (root / path).is_file():
            return (root / path).read_text("utf-8")
    raise NotFound(f"this installation lacks {path}; install SynergAI from its wheel")


def _below(root: Path, path: str) -> Path:
    pure = PurePosixPath(path)
    if ".." in pure.parts:
        raise InvalidInput(f"{path!r} contains '..'")
    return root.joinpath(*(part for part in pure.parts if part != "/"))
