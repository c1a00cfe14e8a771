"""Services of Kubernetes that follow the leader among the gateways of a StatefulSet.

All its pods are ready, so that updates wait for each of them. Only the leader serves, so it makes
the Services select its own pod. It needs the right to patch them, and no other.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"
"""Label that Kubernetes gives to each pod of a StatefulSet."""
_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 10.0
"""Interval of further patches: the last leader may have been late with its own."""
_RETRY_S: Final = 0.5


async def select_this_pod(services: Sequence[str], account: Path = _ACCOUNT) -> NoReturn:
    """Keep Services pointing at this pod until cancelled.

    Args:
        account: directory with the token of the pod's service account.
    """
    failing = False
    while True:
        try:
            for service in services:
                await asyncio.to_thread(_patch, service, account)
        except (OSError, http.client.HTTPException, Unavailable) as error:
            if not failing:
                _log.warning("cannot send clients to this gateway, trying again: %s", error)
            failing = True
        else:
            if failing:
                _log.info("clients are sent to this gateway")
            failing = False
        await asyncio.sleep(_RETRY_S if failing else _AGAIN_S)


def _patch(service: str, account: Path) -> None:
    """Let one Service select this pod only."""
    token, namespace = ((account / name).read_text() for name in ("token", "namespace"))
    connection = http.client.HTTPSConnection(
        os.environ["KUBERNETES_SERVICE_HOST"],
        int(os.environ["KUBERNETES_SERVICE_PORT"]),
        timeout=_TIMEOUT_S,
        context=ssl.create_default_context(cafile=str(account / "ca.crt")),
    )
    try:
        connection.request(
            "PATCH",
            f"/api/v1/namespaces/{namespace}/services/{service}",
            json.dumps({"spec": {"selector": {_POD_LABEL: socket.gethostname()}}}),
            {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
            },
        )
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise Unavailable(
                f"Kubernetes answers {answer.status} to a patch of the Service {service}"
            )
    finally:
        connection.close()
