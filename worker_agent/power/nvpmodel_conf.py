"""Parser of ``/etc/nvpmodel.conf``, the board's definition of its power modes.

Ids and names differ between boards and JetPack releases, so they are always read from this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from synergai.names import is_number, validate_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

NO_CAP: Final = 2**31 - 1
"""Value that ``nvpmodel`` prints for -1, and that some kernels report."""
_HEADER: Final = re.compile(r"<\s*(PARAM|POWER_MODEL|PM_CONFIG|FAN_CONFIG)\s+(.*?)\s*>")
_MAX_CORE: Final = 8191
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
            if setting.parameter == "CPU_ONLINE" and is_number(core, _MAX_CORE):
                found[int(core)] = setting.value == "1"
        return found

    def cores(self, present: Collection[int]) -> int:
        """Return the number of online cores, of those that the board has.

        Cores that the mode does not set stay online, as does the last one.
        """
        online = self.online
        return max(1, sum(online.get(core, True) for core in present))

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
    """Content of the file, as far as it was understood.

    Attributes:
        default: id of the mode after a boot; None if the file does not name it.
        faults: what was not understood, with line numbers. A mode with such a line is left out.
    """

    parameters: Mapping[str, Parameter]
    models: Mapping[int, PowerModel]
    default: int | None
    faults: tuple[str, ...]


def parse_conf(text: str) -> BoardModes:
    """Parse the content of a board's file; it never fails, see `BoardModes.faults`."""
    return _Parser().parse(text)


class _Parser:
    def __init__(self) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._models: dict[int, PowerModel] = {}
        self._default: int | None = None
        self._faults: list[str] = []
        # The current section; after a header that was not understood, its lines are skipped.
        self._arguments: dict[str, str] | None = None
        self._model: int | None = None
        self._skips = False

    def parse(self, text: str) -> BoardModes:
        for number, line in enumerate(text.splitlines(), 1):
            content = line.partition("#")[0].strip()
            try:
                if content.startswith("<"):
                    self._header(content)
                elif content and not self._skips:
                    self._line(content)
            except (KeyError, ValueError):
                self._faults.append(f"line {number} is not understood: {line.strip()!r}")
                self._leave_section()
        if not self._models:
            self._faults.append("no POWER_MODEL is understood")
        if self._default is None:
            self._faults.append("there is no PM_CONFIG")
        return BoardModes(self._parameters, self._models, self._default, tuple(self._faults))

    def _leave_section(self) -> None:
        """Drop the current mode, which is known in part only; keep a parameter's other lines."""
        self._skips = self._arguments is None
        if self._model is not None:
            del self._models[self._model]
            self._model = None

    def _line(self, content: str) -> None:
        if self._model is not None:
            model = self._models[self._model]
            parameter, argument, value = content.split()
            if argument not in self._parameters[parameter].arguments:
                raise ValueError(content)
            settings = (*model.settings, Setting(parameter, argument, value))
            self._models[self._model] = replace(model, settings=settings)
        elif self._arguments is not None:
            argument, path = content.split(maxsplit=1)
            if not path.startswith("/") or ".." in path:
                raise ValueError(path)
            self._arguments[argument] = path
        else:
            raise ValueError(content)

    def _header(self, content: str) -> None:
        self._arguments = self._model = None
        self._skips = False
        header = _HEADER.fullmatch(content)
        if header is None:
            raise ValueError(content)
        fields = dict(_pair(pair) for pair in header[2].split())
        if header[1] == "PARAM":
            self._arguments = {}
            self._parameters[fields["NAME"]] = Parameter(fields["TYPE"], self._arguments)
        elif header[1] == "POWER_MODEL":
            number, name = int(fields["ID"]), validate_name(fields["NAME"], "power mode")
            if number in self._models or name in {each.name for each in self._models.values()}:
                raise ValueError(content)
            self._models[number] = PowerModel(number, name, ())
            self._model = number
        elif header[1] == "PM_CONFIG":
            self._default = int(fields["DEFAULT"])


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(text)
    return key, value
