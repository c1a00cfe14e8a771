"""Addresses that other machines can reach need encryption and authentication."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from gateway.gateway_settings import GatewaySettings

_log = logging.getLogger(__name__)


def check_exposure(config: GatewaySettings, *, warns: bool = False) -> None:
    """Check that every port that other machines can reach is encrypted and authenticated.

    With ``insecure``, missing protection is no error, and is only logged if the gateway `warns`.
    """
    if config.insecure and not warns:
        return
    encryption = "" if config.tls_cert else "--tls-cert and --tls-key"
    table = "" if config.access else "--access"
    ports = (
        ("--listen", config.listen, encryption, table),
        ("--hub", config.hub, encryption, _lacking_of_workers(config)),
        ("--http", config.http, encryption, table),
    )
    problems = [
        f"{option} {address} needs {' and '.join(filter(None, missing))}"
        for option, address, *missing in ports
        if any(missing) and not is_loopback(address.rpartition(":")[0])
    ]
    if not problems:
        return
    if config.insecure:
        _log.warning(
            "other machines can reach ports without encryption or authentication: %s",
            "; ".join(problems),
        )
        return
    raise InvalidInput(
        f"other machines can reach these addresses: {'; '.join(problems)}. Give these options, "
        "listen on 127.0.0.1, or accept the risk with --insecure"
    )


def _lacking_of_workers(config: GatewaySettings) -> str:
    """Return what authenticates workers, if it is missing."""
    if config.tls_client_ca or is_loopback(config.hub.rpartition(":")[0]):
        return ""
    if config.access is not None:
        from gateway.entry.access.table import read_access_table

        if read_access_table(config.access).workers is not None:
            return ""
    return "--tls-client-ca (or [[workers]] in the table of --access)"
