"""Addresses that other machines can reach need encryption and authentication."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from gateway.gateway_settings import GatewaySettings

_log = logging.getLogger(__name__)


def check_before_start(config: GatewaySettings) -> None:
    """Check as `check_exposure` does, before anything is started."""
    if config.insecure or all(
        is_loopback(each.rpartition(":")[0]) for each in config.addresses.values()
    ):
        return
    listed = False
    if config.access is not None:
        from gateway.entry.access.table import read_access_table

        listed = read_access_table(config.access).workers is not None
    check_exposure(config, workers_are_listed=listed)


def check_exposure(config: GatewaySettings, *, workers_are_listed: bool) -> None:
    """Check that every port that other machines can reach is encrypted and authenticated.

    With ``insecure``, missing protection is logged instead.
    """
    encryption = "" if config.tls_cert else "--tls-cert and --tls-key"
    table = "" if config.access else "--access"
    workers = (
        ""
        if config.tls_client_ca or workers_are_listed
        else "--tls-client-ca (or [[workers]] in the table of --access)"
    )
    ports = (
        ("--listen", config.listen, encryption, table),
        ("--hub", config.hub, encryption, workers),
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
