"""``synergai agent check``: list the execution providers and configurations of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Configuration
    from worker_agent.providers.choice import Offers


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="SYNERGAI_AGENT_CONFIG",
        show_envvar=False,
        help="TOML file with the agent's settings. Its environment variables take precedence.",
    ),
]


def check(config: Config = None) -> None:
    """Check the agent's settings, and show its execution providers and configurations.

    The settings are read from the agent's environment variables and file. Each execution provider
    computes a small model on its device, in a separate process. The exit code is 1 if one cannot.
    """
    import asyncio

    from worker_agent.agent_settings import AgentSettings
    from worker_agent.hosts.provider_offers import Runtimes, find_offers
    from worker_agent.power.files import MachineFiles
    from worker_agent.power.selection import open_controller

    settings = AgentSettings.load(file=config)
    worker = settings.worker
    offers = asyncio.run(find_offers(worker.providers, Runtimes(), settings.state / "providers"))
    controller = open_controller(worker.power, MachineFiles(worker.root), worker.power_modes)
    try:
        modes = [mode for mode in controller.modes() if not mode.refused]
    finally:
        controller.close()
    _print(offers, worker.configurations(modes, offers), worker.worker_id)
    if offers.refusals:
        raise typer.Exit(1)


def _print(offers: Offers, configurations: Sequence[Configuration], worker_id: str) -> None:
    from synergai.cli.output import print_table

    rows = [("CPU", "", "offered")] if offers.cpu else []
    for choice in offers.choices:
        beside = f"offered, as worker {worker_id}.{choice.suffix}"
        rows.append((choice.name, choice.device, beside if choice.parallel else "offered"))
    rows += [
        (refusal.choice.name, refusal.choice.device, f"not offered: {refusal.reason}")
        for refusal in offers.refusals
    ]
    print_table(("provider", "device", ""), rows)
    typer.echo()
    print_table((f"configurations of {worker_id}",), [(str(each),) for each in configurations])
