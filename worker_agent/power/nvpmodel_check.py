"""Comparison of a board's files with the definition of a power mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker_agent.power.files import parse_cpus
from worker_agent.power.nvpmodel_conf import NO_CAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker_agent.power.files import MachineFiles
    from worker_agent.power.nvpmodel_conf import BoardModes, PowerModel, Setting

ONLINE = "/sys/devices/system/cpu/online"


def mismatches(files: MachineFiles, board: BoardModes, model: PowerModel) -> list[str]:
    """Describe where the board differs from `model`; return an empty list if it matches.

    Files that do not exist in this kernel or that only root can read are skipped, except that
    the online cores and the CPU clock must be readable.
    """
    return [*_cores(files, model), *_values(files, board, model)]


def _cores(files: MachineFiles, model: PowerModel) -> Iterator[str]:
    try:
        online = parse_cpus(files.read(ONLINE))
    except (OSError, ValueError):
        yield f"cannot read {ONLINE}"
        return
    for core, wanted in model.online.items():
        if (core in online) != wanted:
            yield f"core {core} is {'offline' if wanted else 'online'}"


def _values(files: MachineFiles, board: BoardModes, model: PowerModel) -> Iterator[str]:
    clock_seen = False
    for setting in model.settings:
        path = _path(files, board, setting)
        wanted = setting.number
        # Skip lower bounds: jetson_clocks raises them to the upper ones.
        if path is None or wanted is None or setting.argument.startswith("MIN_FREQ"):
            continue
        try:
            found = int(files.read(path), 0)
        except (OSError, ValueError):
            continue
        if board.parameters[setting.parameter].kind == "CLOCK":
            clock_seen = clock_seen or setting.parameter.startswith("CPU")
            right = _is_cap(found, files, board, setting, wanted)
        else:
            right = found == wanted
        if not right:
            yield f"{setting.parameter} {setting.argument} is {found}, not {wanted}"
    if not clock_seen:
        yield "cannot read the CPU clock"


def _path(files: MachineFiles, board: BoardModes, setting: Setting) -> str | None:
    """Return the file of `setting` on this kernel, or None."""
    parameter = board.parameters[setting.parameter]
    for argument in (setting.argument, f"{setting.argument}_KNEXT"):
        path = parameter.arguments.get(argument, "")
        if parameter.kind == "HWMON" and path:
            folder, _, name = path.partition(" ")
            path = next(iter(files.find(folder, f"hwmon*/{name.strip()}")), "")
        if path and files.exists(path):
            return path
    return None


def _is_cap(
    found: int, files: MachineFiles, board: BoardModes, setting: Setting, wanted: int
) -> bool:
    """Return whether a value matches a wanted cap.

    The kernel rounds a cap up or down to a frequency step; no cap means the maximum.
    """
    table = _table(files, board, setting)
    if wanted in (-1, 0, NO_CAP):
        caps = [
            other.number or 0
            for model in board.models.values()
            for other in model.settings
            if (other.parameter, other.argument) == (setting.parameter, setting.argument)
        ]
        most = max(table or [cap for cap in caps if cap != NO_CAP], default=0)
        return found in (-1, 0) or found >= most
    below = max((step for step in table if step <= wanted), default=wanted)
    above = min((step for step in table if step >= wanted), default=wanted)
    return found in (wanted, below, above)


def _table(files: MachineFiles, board: BoardModes, setting: Setting) -> list[int]:
    arguments = board.parameters[setting.parameter].arguments
    for argument in ("FREQ_TABLE", "FREQ_TABLE_KNEXT"):
        try:
            return [int(step) for step in files.read(arguments[argument]).split()]
        except (KeyError, OSError, ValueError):
            continue
    return []
