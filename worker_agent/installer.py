"""Installation and removal of the agent as a systemd service.

Both are planned as a list of steps, which ``--dry-run`` prints instead of executing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.domain import validate_name
from synergai.errors import InvalidInput, NotFound, NotSupported, Unavailable
from synergai.runtime.atomic_file import write_atomic
from synergai.runtime.settings import validate_address
from worker_agent.power.helper import ALLOWED
from worker_agent.power.selection import AUTO, CONTROLLERS, detect, open_controller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from worker_agent.power.files import Files

ENVIRONMENT: Final = "/etc/synergai/agent.env"
UNITS: Final = "/etc/systemd/system"
SYSUSERS: Final = "/etc/sysusers.d/synergai.conf"
STATE: Final = "/var/lib/synergai-agent"
MODELS: Final = f"{STATE}/models"
_DROP_IN: Final = f"{UNITS}/synergai-agent.service.d/cgroup.conf"
_SERVICE: Final = "synergai-agent.service"
_SOCKET: Final = "synergai-power.socket"
_UNIT_NAMES: Final = (_SERVICE, _SOCKET, "synergai-power@.service")
_DEFAULT_PREFIX: Final = "/opt/synergai/bin/"
_HUB_PORT: Final = 8010
_PRIVATE_PATHS: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  # not used


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
        return f"write {self.path} ({self.mode:o}){kept}:\n{text.rstrip()}"


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


Step: TypeAlias = WriteFile | RemovePath | RunCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Options of an installation.

    Attributes:
        gateway: the gateway's hub, ``HOST`` or ``HOST:PORT``.
        worker_class: name under which identical machines share a profile.
        worker_id: this worker's name; empty means the host name.
        models: model directory.
        power: power mode controller; see ``worker_agent.power.selection``.
        programs: directory of ``synergai`` and ``synergai-power``.

    Raises:
        InvalidInput: on construction, if a value is invalid.
    """

    gateway: str
    worker_class: str
    worker_id: str = ""
    models: str = MODELS
    power: str = AUTO
    programs: Path = Path(sys.executable).parent

    def __post_init__(self) -> None:
        validate_address(self.hub)
        validate_name(self.worker_class, "worker class")
        if self.worker_id:
            validate_name(self.worker_id, "worker id")
        if self.power not in (AUTO, *CONTROLLERS.names()):
            raise InvalidInput(
                f"unknown power controller {self.power!r}; choose from: "
                f"{', '.join((AUTO, *CONTROLLERS.names()))}"
            )
        for path in (self.models, str(self.programs)):
            if not path.startswith("/") or any(c in path for c in "\n\"'\\$% "):
                raise InvalidInput(
                    f"{path!r} must be an absolute path without spaces, quotes, '$' and '%'"
                )
            if path.startswith(tuple(f"{private}/" for private in _PRIVATE_PATHS)):
                raise InvalidInput(
                    f"the service cannot access {path}, a private directory; use another one, "
                    f"such as {STATE} for models and /opt/synergai for programs"
                )

    @property
    def hub(self) -> str:
        """The gateway's hub, including the port."""
        return self.gateway if ":" in self.gateway else f"{self.gateway}:{_HUB_PORT}"

    def steps(self, files: Files) -> Iterator[Step]:
        """Yield the steps that install the agent on the machine `files`.

        Raises:
            NotFound: this installation of SynergAI lacks the unit files.
            NotSupported: the machine lacks what the power controller needs.
        """
        power = detect(files) if self.power == AUTO else self.power
        yield WriteFile(SYSUSERS, _read_unit("synergai.conf"))
        yield RunCommand(("systemd-sysusers", SYSUSERS))
        yield WriteFile(ENVIRONMENT, self._environment(), mode=0o640)
        if power in ("cpufreq", "nvpmodel"):
            modes = [
                mode.name for mode in open_controller(power, files).modes() if not mode.refused
            ]
            text = "# Power modes that the agent may request, one per line.\n"
            yield WriteFile(ALLOWED, text + "".join(f"{name}\n" for name in modes), keep=True)
        for name in _UNIT_NAMES:
            text = _read_unit(name).replace(_DEFAULT_PREFIX, f"{self.programs}/")
            if name == "synergai-power@.service" and self.power != AUTO:
                text = text.replace("synergai-power\n", f"synergai-power --controller {power}\n", 1)
            yield WriteFile(f"{UNITS}/{name}", text)
        if power == "cgroup":
            yield WriteFile(_DROP_IN, "[Service]\nDelegate=cpu cpuset\nProtectControlGroups=no\n")
        yield RunCommand(("systemctl", "daemon-reload"))
        yield RunCommand(("systemctl", "enable", "--now", _SOCKET, _SERVICE))
        # A service that was already running still uses the previous files.
        yield RunCommand(("systemctl", "try-restart", _SERVICE))

    def _environment(self) -> str:
        values = {
            "GATEWAY": self.hub,
            "WORKER_CLASS": self.worker_class,
            "WORKER_ID": self.worker_id,
            "MODELS": self.models,
            "POWER": self.power,
        }
        return "".join(f"SYNERGAI_AGENT_{key}={value}\n" for key, value in values.items() if value)


def removal_steps(*, purge: bool = False) -> Iterator[Step]:
    """Yield the steps that remove the agent.

    Args:
        purge: also remove its settings, state and models.
    """
    yield RunCommand(("systemctl", "disable", "--now", _SERVICE, _SOCKET), may_fail=True)
    for name in _UNIT_NAMES:
        yield RemovePath(f"{UNITS}/{name}")
    yield RemovePath(_DROP_IN)
    yield RunCommand(("systemctl", "daemon-reload"))
    if purge:
        yield RemovePath(ENVIRONMENT)
        yield RemovePath(ALLOWED)
        yield RemovePath(STATE)
        yield RemovePath(SYSUSERS)


def execute(steps: Sequence[Step], files: Files) -> None:
    """Execute the steps.

    Raises:
        Unavailable: a command failed; earlier steps remain, and executing all again is safe.
        OSError: a file cannot be written, most likely because the process is not root.
    """
    for step in steps:
        match step:
            case WriteFile():
                _write(step, files.path(step.path))
            case RemovePath():
                path = files.path(step.path)
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
            case RunCommand():
                _run(step)


def _write(step: WriteFile, path: Path) -> None:
    if path.exists():
        if step.keep or path.read_text("utf-8") == step.text:
            return
        path.replace(path.with_name(f"{path.name}.old"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, step.text, step.mode)


def _run(step: RunCommand) -> None:
    program = shutil.which(step.command[0])
    if program is None:
        raise NotSupported(f"{step.command[0]} not found; this needs a machine with systemd")
    done = subprocess.run(
        [program, *step.command[1:]], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode and not step.may_fail:
        reason = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
        raise Unavailable(f"{' '.join(step.command)} failed: {reason}")


def _read_unit(name: str) -> str:
    """Return the content of a file of ``deploy/systemd``, from the package or a checkout."""
    here = Path(__file__).parent
    for folder in (here / "systemd", here.parent / "deploy" / "systemd"):
        if (folder / name).is_file():
            return (folder / name).read_text("utf-8")
    raise NotFound(f"this installation lacks {name}; install SynergAI from its wheel")
