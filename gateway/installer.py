"""Installation of the gateway as a systemd service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.entry.access.exposure import check_exposure
from gateway.gateway_settings import GatewaySettings
from synergai.errors import InvalidInput
from synergai.runtime.installation import (
    SETTINGS,
    UNITS,
    RemovePath,
    RunCommand,
    Step,
    WriteFile,
    check_programs,
    read_unit,
)
from synergai.runtime.settings import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENVIRONMENT: Final = f"{SETTINGS}/gateway.env"
"""The service's settings, which installations leave alone."""
_HEADER: Final = "# Settings of the gateway, one SYNERGAI_GATEWAY_… per line.\n"
SERVICE: Final = "synergai-gateway.service"
STATE_DIRECTORIES: Final = ("/var/lib/synergai-gateway", "/var/lib/private/synergai-gateway")
"""State directory of the service's dynamic user: a link, and where it leads."""


def installation_steps(programs: str, root: Path) -> Iterator[Step]:
    """Yield the steps that install the gateway with the programs of a directory."""
    yield from check_programs(programs, ("synergai",), root)
    yield WriteFile(ENVIRONMENT, _HEADER, mode=0o640, keep=True)
    yield WriteFile(f"{UNITS}/{SERVICE}", read_unit(SERVICE, programs))
    yield RunCommand(("systemctl", "daemon-reload"))
    yield RunCommand(("systemctl", "enable", SERVICE))
    # Not `enable --now`: a service that is already running still uses the previous files.
    yield RunCommand(("systemctl", "restart", SERVICE))


def find_refusal(root: Path) -> str:
    """Return why the gateway will refuse to start with its settings; empty if it will not."""
    try:
        pairs = dict(line.strip().split("=", 1) for line in _lines(root) if "=" in line)
        given = {
            name: value
            for name in options_of(GatewaySettings)
            if (value := pairs.get(GatewaySettings.env_var(name)))
        }
        check_exposure(GatewaySettings.load(given))
    except InvalidInput as error:
        return str(error)
    return ""


def _lines(root: Path) -> list[str]:
    file = root / ENVIRONMENT.lstrip("/")
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None


def removal_steps(*, purge: bool = False) -> Iterator[Step]:
    """Yield the steps that remove the gateway; with `purge`, also its settings and data."""
    yield RunCommand(("systemctl", "disable", "--now", SERVICE), may_fail=True)
    yield RemovePath(f"{UNITS}/{SERVICE}")
    yield RunCommand(("systemctl", "daemon-reload"))
    if purge:
        yield RemovePath(ENVIRONMENT)
        yield from map(RemovePath, STATE_DIRECTORIES)
