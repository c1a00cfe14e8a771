"""Options shared by the agent's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
