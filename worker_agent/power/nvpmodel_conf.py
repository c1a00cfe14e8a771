"""Parser of ``/etc/nvpmodel.conf``, the board's definition of its power modes.

Ids and names differ between boards and JetPack releases, so they are always read from this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_CAP: Final = 2**31 - 1
"""Value that ``nvpmodel`` prints for -1, and that some kernels report."""
_HEADER: Final = re.compile(r"<\s+(PARAM|POWER_MODEL|PM_CONFIG|FAN_CONFIG)\s+(.*?)\s*>")
_BUDGET: Final = re.compile(r"(?:^|_)(\d+)W(?:_|$)")


@dataclass(frozen=True)
class Parameter:
    """A ``PARAM`` section, with a file by argument; for ``HWMON``, a directory and a file."""

    kind: str
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """One line of a ``POWER_MODEL`` section: the value of an argument of a parameter."""

    parameter: str
    argument: str
    value: str

    @property
    def number(self) -> int | None:
        """The value as an integer, or None."""
        try:
            return int(self.value, 0)
        except ValueError:
            return None


@dataclass(frozen=True)
class PowerModel:
    """A ``POWER_MODEL`` section, one mode of the board."""

    number: int
    name: str
    settings: tuple[Setting, ...]

    @property
    def online(self) -> Mapping[int, bool]:
        """Whether a core is online, for each core that the mode sets."""
        found = {}
        for setting in self.settings:
            _, _, core = setting.argument.partition("CORE_")
            if setting.parameter == "CPU_ONLINE" and core.isdecimal():
                found[int(core)] = setting.value == "1"
        return found

    @property
    def max_khz(self) -> int:
        """CPU clock cap in kHz; 0 if none."""
        caps = [
            setting.number or 0
            for setting in self.settings
            if setting.parameter.startswith("CPU") and setting.argument.startswith("MAX_FREQ")
        ]
        return max((cap for cap in caps if 0 < cap < NO_CAP), default=0)

    @property
    def memory_hz(self) -> int:
        """Memory clock cap in Hz; 0 if none."""
        caps = (
            setting.number or 0
            for setting in self.settings
            if setting.parameter == "EMC" and setting.argument.startswith("MAX_FREQ")
        )
        return max((cap for cap in caps if 0 < cap < NO_CAP), default=0)

    @property
    def tpc_mask(self) -> int:
        """Mask of the GPU parts that are off; changing it needs a reboot."""
        for setting in self.settings:
            if setting.parameter == "TPC_POWER_GATING" and setting.number is not None:
                return setting.number
        return 0

    @property
    def budget_w(self) -> float:
        """Power limit in watts according to the name; 0 if it has none."""
        found = _BUDGET.search(self.name)
        return float(found[1]) if found else 0.0


@dataclass(frozen=True)
class BoardModes:
    """Content of the file."""

    parameters: Mapping[str, Parameter]
    models: Mapping[int, PowerModel]
    default: int


def parse_conf(text: str, where: str = "/etc/nvpmodel.conf") -> BoardModes:
    """Parse the content of a board's file."""
    try:
        return _Parser().parse(text)
    except _MalformedConf as error:
        raise NotSupported(f"{where}: {error}") from None


class _MalformedConf(Exception):
    """A syntax error and its line number."""


class _Parser:
    def __init__(self) -> None:
        self._parameters: dict[str, tuple[str, dict[str, str]]] = {}
        self._models: dict[int, tuple[str, list[Setting]]] = {}
        self._default: int | None = None
        self._arguments: dict[str, str] | None = None
        self._settings: list[Setting] | None = None

    def parse(self, text: str) -> BoardModes:
        for number, line in enumerate(text.splitlines(), 1):
            content = line.partition("#")[0].strip()
            if content:
                try:
                    self._line(content)
                except (KeyError, ValueError) as error:
                    raise _MalformedConf(f"syntax error in line {number}: {line!r}") from error
        if self._default is None or not self._models:
            raise _MalformedConf("the file has no POWER_MODEL or no PM_CONFIG")
        return BoardModes(
            {name: Parameter(kind, args) for name, (kind, args) in self._parameters.items()},
            {
                number: PowerModel(number, name, tuple(settings))
                for number, (name, settings) in self._models.items()
            },
            self._default,
        )

    def _line(self, content: str) -> None:
        if content.startswith("<"):
            header = _HEADER.fullmatch(content)
            if header is None:
                raise ValueError(content)
            self._header(header[1], dict(_pair(pair) for pair in header[2].split()))
        elif self._settings is not None:
            parameter, argument, value = content.split()
            kind, arguments = self._parameters[parameter]
            if argument not in arguments:
                raise ValueError(f"{kind} {parameter} has no {argument}")
            self._settings.append(Setting(parameter, argument, value))
        elif self._arguments is not None:
            argument, path = content.split(maxsplit=1)
            if not path.startswith("/") or ".." in path:
                raise ValueError(path)
            self._arguments[argument] = path
        else:
            raise ValueError(content)

    def _header(self, kind: str, fields: dict[str, str]) -> None:
        self._arguments = self._settings = None
        if kind == "PARAM":
            _, self._arguments = self._parameters[fields["NAME"]] = (fields["TYPE"], {})
        elif kind == "POWER_MODEL":
            _, self._settings = self._models[int(fields["ID"])] = (fields["NAME"], [])
        elif kind == "PM_CONFIG":
            self._default = int(fields["DEFAULT"])


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(text)
    return key, value
