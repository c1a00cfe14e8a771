"""Settings shared by commands that send samples to a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from synergai.client.target import (
    Connection,
    connection,
    default_target,
    default_tls_ca,
    default_token_file,
)
from synergai.errors import InvalidInput
from synergai.runtime.settings import POSITIONAL, Address, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class TargetSettings(Settings):
    """The gateway, the engine and its inputs."""

    engine: Annotated[str, POSITIONAL] = Field(description="Name of the engine.")
    target: Address = Field(default_factory=default_target, description="Address of the gateway.")
    tls_ca: Path | None = Field(
        default_factory=default_tls_ca,
        description="Certificate authority (PEM) of the gateway's certificate; enables TLS.",
    )
    token_file: Path | None = Field(
        default_factory=default_token_file,
        description="File with a bearer token; without one, SYNERGAI_TOKEN has the token, if any.",
    )
    models: Path = Field(
        default=Path("models"),
        description="Model directory; the engine's sample set in it is sent, if it has one.",
    )
    samples: Path | None = Field(
        default=None,
        description="Sample set to send instead: an .npz file with one array per input.",
    )

    def connection(self) -> Connection:
        """Return the arguments that encrypt and authenticate a client's connection.

        Raises:
            InvalidInput: a file cannot be read.
        """
        return connection(self.tls_ca, self.token_file)

    def check_applicable(self, choice: str, known: Mapping[str, tuple[str, ...]]) -> None:
        """Check that no option was given that the chosen mode would ignore.

        Args:
            choice: name of the field with the mode, such as ``scenario``.
            known: the modes that use a field, by name of the field.

        Raises:
            InvalidInput: an option does not apply.
        """
        chosen = getattr(self, choice)
        for name, choices in known.items():
            if name in self.model_fields_set and getattr(self, name) and chosen not in choices:
                these = " or ".join(choices)
                raise InvalidInput(
                    f"--{self.option_name(name)} is for --{self.option_name(choice)} {these}"
                )
