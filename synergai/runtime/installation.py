"""Installation and removal of services under systemd.

Both are planned as a list of steps. A plan can be made and shown on any machine, by any user:
`find_problem` tells which of its steps would fail. `execute` changes nothing unless all would
succeed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import InvalidInput, NotFound, NotSupported, Unavailable
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SETTINGS: Final = "/etc/synergai"
UNITS: Final = "/etc/systemd/system"
PROGRAMS: Final = "/opt/synergai/bin"
"""Directory of the programs in the unit files."""
_BOOTED: Final = Path("/run/systemd/system")
"""Exists on machines that systemd has booted, see sd_booted(3)."""
_PRIVATE_PATHS: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  # not used
_NEEDS_ROOT: Final = "it needs root; run it with sudo"


@dataclass(frozen=True, slots=True)
class Check:
    """Check a precondition; `problem` is why it is not met, or empty."""

    condition: str
    problem: str

    def __str__(self) -> str:
        return f"check that {self.condition}"


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a file. An existing one is kept (`keep`) or backed up as ``.old``."""

    path: str
    text: str
    mode: int = 0o644
    keep: bool = False

    def __str__(self) -> str:
        kept = ", unless it exists" if self.keep else ""
        text = "".join(f"    {line}\n" for line in self.text.splitlines() if line)
        return f"write {self.path} ({self.mode:o}){kept}:\n{text}".rstrip()


@dataclass(frozen=True, slots=True)
class RemovePath:
    """Remove a file or directory if it exists."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run a command; `may_fail` if it only undoes a step that may not have been executed."""

    command: tuple[str, ...]
    may_fail: bool = False

    def __str__(self) -> str:
        return f"run {' '.join(self.command)}"


Step: TypeAlias = Check | WriteFile | RemovePath | RunCommand


def check_programs(programs: str, names: Sequence[str], root: Path) -> Iterator[Check]:
    """Yield the check that a service can run the programs `names` in the directory `programs`."""
    problem = path_problem(programs, "/opt/synergai")
    missing = [name for name in names if not os.access(_below(root, programs) / name, os.X_OK)]
    if not problem and missing:
        problem = f"{programs} has no program {missing[0]}; name the directory with --programs"
    interpreter = _interpreter(_below(root, programs), root)
    if not problem and interpreter and path_problem(interpreter, ""):
        problem = (
            f"services cannot access the Python of {programs}, {interpreter}; create the "
            "environment with one elsewhere, such as /opt/python (uv: UV_PYTHON_INSTALL_DIR)"
        )
    yield Check(f"services can run {' and '.join(names)} in {programs}", problem)


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


def find_problem(step: Step, root: Path) -> str:
    """Return why `step` would fail, as far as visible now; empty if it would not."""
    match step:
        case Check():
            return step.problem
        case WriteFile(keep=keep):
            target = _below(root, step.path)
            return "" if keep and target.exists() else _find_write_problem(target)
        case RemovePath():
            target = _below(root, step.path)
            return _find_write_problem(target) if target.exists() else ""
        case RunCommand():
            program = step.command[0]
            if shutil.which(program) is None:
                return f"{program} not found; this needs a machine with systemd"
            if os.geteuid():
                return _NEEDS_ROOT
            if program == "systemctl" and not _BOOTED.is_dir():
                return "systemd is not running on this machine"
            return ""


def _find_write_problem(target: Path) -> str:
    folder = next(parent for parent in target.parents if parent.is_dir())
    if os.access(folder, os.W_OK):
        return ""
    return _NEEDS_ROOT if os.geteuid() else f"{folder} is not writable"


def execute(steps: Sequence[Step], root: Path = Path("/")) -> None:
    """Execute the steps, if none of them is known to fail."""
    for step in steps:
        if problem := find_problem(step, root):
            first_line = str(step).partition("\n")[0].rstrip(":")
            raise NotSupported(f"cannot {first_line}: {problem} (--dry-run prints all steps)")
    for step in steps:
        match step:
            case Check():
                pass
            case WriteFile():
                _write(step, _below(root, step.path))
            case RemovePath():
                path = _below(root, step.path)
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            case RunCommand():
                _run(step)


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


def _write(step: WriteFile, path: Path) -> None:
    if path.exists():
        if step.keep or path.read_text("utf-8") == step.text:
            return
        path.replace(path.with_name(f"{path.name}.old"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, step.text, step.mode)


def _run(step: RunCommand) -> None:
    done = subprocess.run(step.command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode and not step.may_fail:
        reason = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
        raise Unavailable(f"{' '.join(step.command)} failed: {reason}")
