"""Addresses that other machines can reach need encryption and authentication."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


def check_exposure(settings: GatewaySettings, *, workers_are_listed: bool) -> None:
    """Check that every port that other machines can reach is encrypted and authenticated.

    With ``insecure``, what is missing is logged instead.

    Args:
        settings: the gateway's settings.
        workers_are_listed: whether the access table says which workers may join.

    Raises:
        InvalidInput: a port lacks encryption or authentication; the message has the options.
    """
    encryption = "" if settings.tls_cert else "--tls-cert and --tls-key"
    table = "" if settings.access else "--access"
    workers = (
        ""
        if settings.tls_client_ca or workers_are_listed
        else "--tls-client-ca, or [[workers]] in the table of --access"
    )
    http_encryption = [encryption, "" if settings.http_tls else "--http-tls"]
    ports = (
        ("--listen", settings.listen, encryption, table),
        ("--hub", settings.hub, encryption, workers),
        ("--http", settings.http, *http_encryption, table),
    )
    problems = [
        f"{option} {address} needs {' and '.join(filter(None, missing))}"
        for option, address, *missing in ports
        if any(missing) and not is_loopback(address.rpartition(":")[0])
    ]
    if not problems:
        return
    if settings.insecure:
        _log.warning(
            "other machines can reach ports without encryption or authentication: %s",
            "; ".join(problems),
        )
        return
    raise InvalidInput(
        f"other machines can reach these addresses: {'; '.join(problems)}. Give these options, "
        "listen on 127.0.0.1, or accept the risk with --insecure"
    )
