"""What can be chosen wherever a gateway is asked with samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from synergai.settings import POSITIONAL, Address, Settings
from synergai.target import default_target, default_tls_ca


class AskingSettings(Settings):
    """Whom to ask for what, and with which inputs."""

    engine: Annotated[str, POSITIONAL] = Field(description="Name of the engine.")
    target: Address = Field(default_factory=default_target, description="The gateway.")
    tls_ca: Path | None = Field(
        default_factory=default_tls_ca,
        description="Authority (PEM) of the gateway's certificate; with it, the connection is "
        "encrypted.",
    )
    models: Path = Field(
        default=Path("models"),
        description="Model directory; the engine's sample set in it is sent, if there is one.",
    )
    samples: Path | None = Field(
        default=None, description="Send this sample set instead: an .npz of one array per input."
    )
