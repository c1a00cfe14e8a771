"""Settings shared by commands that send samples to a gateway."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from synergai.cli.gateway_client import GatewayAddress
from synergai.client.target import (
    TARGET_VARIABLE,
    ConnectionOptions,
    connection,
    default_tls_ca,
    default_token_file,
)
from synergai.errors import InvalidInput
from synergai.runtime.setting_types import POSITIONAL, Address
from synergai.runtime.settings import Settings, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def _address_of_environment(
    tls_ca: Path | None = None, token_file: Path | None = None
) -> GatewayAddress:
    """Return the gateway of commands that name none."""
    return GatewayAddress(os.environ.get(TARGET_VARIABLE, ""), tls_ca, token_file).resolved()


class TargetSettings(Settings, frozen=True, kw_only=True):
    """The gateway, the engine and its inputs."""

    engine: Annotated[str, POSITIONAL, "Name of the engine."]
    target: Annotated[Address, "Address of the gateway."] = msgspec.field(
        default_factory=lambda: _address_of_environment().target
    )
    tls_ca: Annotated[
        Path | None, "Certificate authority (PEM) of the gateway's certificate; enables TLS."
    ] = msgspec.field(default_factory=default_tls_ca)
    token_file: Annotated[
        Path | None, "File with a bearer token; without one, SYNERGAI_TOKEN has the token, if any."
    ] = msgspec.field(default_factory=default_token_file)
    models: Annotated[
        Path, "Model directory; the engine's sample set in it is sent, if it has one."
    ] = Path("models")
    samples: Annotated[
        Path | None, "Sample set to send instead: an .npz file with one array per input."
    ] = None
    given: frozenset[str] = frozenset()

    def connection(self) -> ConnectionOptions:
        """Return the arguments that encrypt and authenticate a client's connection."""
        if "target" in self.given:  # the context's token is for its own target
            return connection(self.tls_ca, self.token_file)
        address = _address_of_environment(self.tls_ca, self.token_file)
        return connection(address.tls_ca, address.token_file)

    def check_applicable(self, choice: str, known: Mapping[str, tuple[str, ...]]) -> None:
        """Check that no option was given that the chosen mode would ignore.

        Args:
            choice: name of the field with the mode, such as ``scenario``.
            known: the modes that use a field, by name of the field.
        """
        options, chosen = options_of(type(self)), getattr(self, choice)
        for name, choices in known.items():
            if name in self.given and getattr(self, name) and chosen not in choices:
                these = " or ".join(choices)
                raise InvalidInput(
                    f"--{options[name].flag} is for --{options[choice].flag} {these}"
                )
