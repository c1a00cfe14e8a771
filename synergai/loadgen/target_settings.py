"""What can be chosen wherever a gateway is asked with samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from synergai.client.target import default_target, default_tls_ca
from synergai.errors import InvalidInput
from synergai.runtime.settings import POSITIONAL, Address, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class TargetSettings(Settings):
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

    def check_applicable(self, choice: str, known: Mapping[str, tuple[str, ...]]) -> None:
        """Refuse options that what was chosen would pass over in silence.

        Args:
            choice: name of the field that chooses, such as ``scenario``.
            known: by name of another field, the choices that know it.

        Raises:
            InvalidInput: such an option was given.
        """
        chosen = getattr(self, choice)
        for name, choices in known.items():
            if name in self.model_fields_set and getattr(self, name) and chosen not in choices:
                these = " or ".join(choices)
                raise InvalidInput(
                    f"--{self.option_name(name)} is for --{self.option_name(choice)} {these}"
                )
