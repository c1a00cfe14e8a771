"""Puts the agent under systemd's care, and takes it out again.

What is to be done is planned first, as a list of steps; ``--dry-run`` prints it instead.
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
_SHIPPED_PREFIX: Final = "/opt/synergai/bin/"
_HUB_PORT: Final = 8010
_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  # not used


@dataclass(frozen=True, slots=True)
class Write:
    """Put a text into a file; one that is there already is kept, or saved as ``.old``."""

    path: str
    text: str
    mode: int = 0o644
    keep: bool = False

    def __str__(self) -> str:
        kept = ", unless it is there" if self.keep else ""
        text = "".join(f"    {line}\n" for line in self.text.splitlines() if line)
        return f"write {self.path} ({self.mode:o}){kept}:\n{text.rstrip()}"


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or a directory, if it is there."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command; `may_fail` where it only undoes what may never have been done."""

    command: tuple[str, ...]
    may_fail: bool = False

    def __str__(self) -> str:
        return f"run {' '.join(self.command)}"


Step: TypeAlias = Write | Remove | Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What the owner of a machine wants.

    Attributes:
        gateway: the gateway's hub, ``HOST`` or ``HOST:PORT``.
        worker_class: what identical machines share a profile under.
        worker_id: this worker's name; empty means the host's.
        models: the model directory.
        power: how power modes are controlled; see ``worker_agent.power.selection``.
        programs: where ``synergai`` and ``synergai-power`` are.

    Raises:
        InvalidInput: on construction, if something of it cannot be.
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
                f"there is no power controller {self.power!r}; there are: "
                f"{', '.join((AUTO, *CONTROLLERS.names()))}"
            )
        for path in (self.models, str(self.programs)):
            if not path.startswith("/") or any(c in path for c in "\n\"'\\$% "):
                raise InvalidInput(f"{path!r} must be an absolute path of plain characters")
            if path.startswith(tuple(f"{hidden}/" for hidden in _HIDDEN)):
                raise InvalidInput(
                    f"the service cannot see {path}, which is in a private place; use another one, "
                    f"such as {STATE} for models and /opt/synergai for programs"
                )

    @property
    def hub(self) -> str:
        """The gateway's hub, with its port."""
        return self.gateway if ":" in self.gateway else f"{self.gateway}:{_HUB_PORT}"

    def steps(self, files: Files) -> Iterator[Step]:
        """All that has to be done on the machine `files`, in order.

        Raises:
            NotFound: the units are not part of this installation of SynergAI.
            NotSupported: the machine does not have what the power controller needs.
        """
        power = detect(files) if self.power == AUTO else self.power
        yield Write(SYSUSERS, _shipped("synergai.conf"))
        yield Run(("systemd-sysusers", SYSUSERS))
        yield Write(ENVIRONMENT, self._environment(), mode=0o640)
        if power in ("cpufreq", "nvpmodel"):
            modes = [
                mode.name for mode in open_controller(power, files).modes() if not mode.refused
            ]
            text = "# Power modes that the agent may ask for, one per line.\n"
            yield Write(ALLOWED, text + "".join(f"{name}\n" for name in modes), keep=True)
        for name in _UNIT_NAMES:
            text = _shipped(name).replace(_SHIPPED_PREFIX, f"{self.programs}/")
            if name == "synergai-power@.service" and self.power != AUTO:
                text = text.replace("synergai-power\n", f"synergai-power --controller {power}\n", 1)
            yield Write(f"{UNITS}/{name}", text)
        if power == "cgroup":
            yield Write(_DROP_IN, "[Service]\nDelegate=cpu cpuset\nProtectControlGroups=no\n")
        yield Run(("systemctl", "daemon-reload"))
        yield Run(("systemctl", "enable", "--now", _SOCKET, _SERVICE))
        # Had it been running, it would still run with what was written before.
        yield Run(("systemctl", "try-restart", _SERVICE))

    def _environment(self) -> str:
        values = {
            "GATEWAY": self.hub,
            "WORKER_CLASS": self.worker_class,
            "WORKER_ID": self.worker_id,
            "MODELS": self.models,
            "POWER": self.power,
        }
        return "".join(f"SYNERGAI_AGENT_{key}={value}\n" for key, value in values.items() if value)


def removal(*, purge: bool = False) -> Iterator[Step]:
    """All that has to be done to take the agent out again.

    Args:
        purge: its settings, its state and the models in it go as well.
    """
    yield Run(("systemctl", "disable", "--now", _SERVICE, _SOCKET), may_fail=True)
    for name in _UNIT_NAMES:
        yield Remove(f"{UNITS}/{name}")
    yield Remove(_DROP_IN)
    yield Run(("systemctl", "daemon-reload"))
    if purge:
        yield Remove(ENVIRONMENT)
        yield Remove(ALLOWED)
        yield Remove(STATE)
        yield Remove(SYSUSERS)


def carry_out(steps: Sequence[Step], files: Files) -> None:
    """Do it.

    Raises:
        Unavailable: a command failed; what was done before stays, and doing all again is safe.
        OSError: a file cannot be written, for lack of root's rights most likely.
    """
    for step in steps:
        match step:
            case Write():
                _write(step, files.path(step.path))
            case Remove():
                path = files.path(step.path)
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
            case Run():
                _run(step)


def _write(step: Write, path: Path) -> None:
    if path.exists():
        if step.keep or path.read_text("utf-8") == step.text:
            return
        path.replace(path.with_name(f"{path.name}.old"))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(step.text, "utf-8")
    new.chmod(step.mode)
    new.replace(path)


def _run(step: Run) -> None:
    program = shutil.which(step.command[0])
    if program is None:
        raise NotSupported(f"{step.command[0]} is not here; this needs a machine with systemd")
    done = subprocess.run(
        [program, *step.command[1:]], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode and not step.may_fail:
        reason = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
        raise Unavailable(f"{' '.join(step.command)} failed: {reason}")


def _shipped(name: str) -> str:
    """A file of ``deploy/systemd``, from the package or a checkout."""
    here = Path(__file__).parent
    for folder in (here / "systemd", here.parent / "deploy" / "systemd"):
        if (folder / name).is_file():
            return (folder / name).read_text("utf-8")
    raise NotFound(f"{name} is not part of this installation; install SynergAI from its wheel")
