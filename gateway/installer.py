"""Installation of the gateway as a systemd service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.entry.access.exposure import check_before_start
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
from synergai.runtime.setting_types import validate_address
from synergai.runtime.settings import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENVIRONMENT: Final = f"{SETTINGS}/gateway.env"
"""The settings that the options of an installation give."""
LOCAL_ENVIRONMENT: Final = f"{SETTINGS}/gateway.local.env"
"""Further settings, which installations leave alone."""
_PREFIX: Final = "SYNERGAI_GATEWAY_"
_HEADER: Final = f"# Written by synergai gateway install. Further settings: {LOCAL_ENVIRONMENT}\n"
SERVICE: Final = "synergai-gateway.service"
STATE_DIRECTORIES: Final = ("/var/lib/synergai-gateway", "/var/lib/private/synergai-gateway")
"""State directory of the service's dynamic user: a link, and where it leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayInstallation:
    """Options of an installation. Without any, the settings of an earlier one stay.

    Attributes:
        listen: address for clients; empty for the gateway's default, as for the others.
    """

    listen: str = ""
    hub: str = ""
    work_port: int = 0
    http: str = ""
    insecure: bool = False
    programs: str

    def __post_init__(self) -> None:
        for address in filter(None, (self.listen, self.hub, self.http)):
            validate_address(address)

    def steps(self, root: Path) -> Iterator[Step]:
        """Yield the steps that install the gateway."""
        yield from check_programs(self.programs, ("synergai",), root)
        settings = self._settings()
        yield WriteFile(ENVIRONMENT, _HEADER + "".join(settings), mode=0o640, keep=not settings)
        yield WriteFile(f"{UNITS}/{SERVICE}", read_unit(SERVICE, self.programs))
        yield RunCommand(("systemctl", "daemon-reload"))
        yield RunCommand(("systemctl", "enable", SERVICE))
        # Not `enable --now`: a service that is already running still uses the previous files.
        yield RunCommand(("systemctl", "restart", SERVICE))

    def refusal(self, root: Path) -> str:
        """Return why the gateway will refuse to start once it is installed, or nothing."""
        try:
            written = self._settings() or _lines(root / ENVIRONMENT.lstrip("/"))
            written += _lines(root / LOCAL_ENVIRONMENT.lstrip("/"))
            pairs = dict(line.strip().split("=", 1) for line in written if "=" in line)
            given = {
                name: value
                for name in options_of(GatewaySettings)
                if (value := pairs.get(GatewaySettings.env_var(name)))
            }
            settings = GatewaySettings.load(given)
            check_before_start(settings)
        except InvalidInput as error:
            return str(error)
        return ""

    def _settings(self) -> list[str]:
        values = {
            "LISTEN": self.listen,
            "HUB": self.hub,
            "WORK_PORT": self.work_port,
            "HTTP": self.http,
            "INSECURE": "true" if self.insecure else "",
        }
        return [f"{_PREFIX}{key}={value}\n" for key, value in values.items() if value]


def _lines(file: Path) -> list[str]:
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
        yield RemovePath(LOCAL_ENVIRONMENT)
        yield from map(RemovePath, STATE_DIRECTORIES)
