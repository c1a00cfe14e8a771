"""``synergai agent modes``: list this machine's power modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from synergai.cli.options import AsJson
from worker_agent.cli.configurations import Config  # noqa: TC001 - typer reads the annotations of commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.controller import PowerMode, Reading


def modes(config: Config = None, as_json: AsJson = False) -> None:
    """List this machine's power modes and the one in force.

    The agent's settings select the power controller.
    """
    # Imported here: an agent never needs it, and it takes 2 MB.
    from synergai.cli.output import print_json
    from worker_agent.agent_settings import AgentSettings
    from worker_agent.power.files import MachineFiles
    from worker_agent.power.selection import open_controller

    worker = AgentSettings.load(file=config).worker
    controller = open_controller(worker.power, MachineFiles(worker.root))
    try:
        found, reading = controller.modes(), controller.read()
    finally:
        controller.close()
    if as_json:
        print_json({"modes": found, "in_force": reading})
    else:
        _print(found, reading)


def _print(found: Sequence[PowerMode], reading: Reading) -> None:
    from synergai.cli.output import print_table

    if not found:
        typer.echo("This machine has no power modes.")
        return
    rows = [
        (
            mode.name,
            "" if mode.number is None else str(mode.number),
            str(mode.cores),
            f"{mode.max_mhz:.0f} MHz" if mode.max_mhz else "",
            f"{mode.budget_w:g} W" if mode.budget_w else "",
            mode.refused or ("in force" if mode.name == reading.mode else ""),
        )
        for mode in found
    ]
    print_table(("mode", "number", "cores", "clock", "budget", ""), rows)
    if not reading.mode:
        typer.echo(f"no known mode: {reading.detail}")
