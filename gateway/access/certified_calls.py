"""Open calls of clients with certificates, which end once their certificate is revoked.

A call is checked when it begins. A stream may last for days, so the connections of open calls are
checked again whenever the revocation lists change. One with a revoked certificate is closed as a
whole: nothing on it may go on, and the client learns the reason from its next call.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from synergai.errors import Unauthenticated
from synergai.runtime.connections import shut_down_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)


class CertifiedCalls:
    """The open calls of one port, by connection and certificate.

    Args:
        check: raises `Unauthenticated` if a certificate (PEM) is revoked.
        disconnect: closes the connection to a peer.
    """

    def __init__(
        self,
        check: Callable[[bytes], None],
        disconnect: Callable[[str], object] = shut_down_connection,
    ) -> None:
        self._check = check
        self._disconnect = disconnect
        self._open: Counter[tuple[str, bytes]] = Counter()

    @contextmanager
    def open(self, peer: str, pem: bytes) -> Iterator[None]:
        """Keep track of a call while the context is open.

        Args:
            peer: address of the connection's other end.
            pem: the verified certificate of the connection.
        """
        key = peer, pem
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def review(self, _lists: object = None) -> None:
        """Close the connections whose certificates have been revoked, as new lists say."""
        for peer, pem in list(self._open):
            try:
                self._check(pem)
            except Unauthenticated as error:
                _log.warning("closing the connection of %s: %s", peer, error)
                self._disconnect(peer)
