"""The connection of a client to a server in this process."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from synergai.protocol.grpcio.front import ClientConnection
from synergai.protocol.native.call import Call
from synergai.protocol.native.session import NativeSession

if TYPE_CHECKING:
    from synergai.protocol.grpcio.front import Front
    from synergai.protocol.native.handlers import Handlers
    from synergai.protocol.native.headers import CallHeaders
    from synergai.protocol.native.session import Stream


class NativeClient(ClientConnection):
    """A client whose calls reach their handlers without passing another socket.

    Args:
        handlers: the handlers of its calls.
    """

    def __init__(self, front: Front, address: str, handlers: Handlers) -> None:
        self._session = NativeSession(self.respond, self._accept)
        super().__init__(front, address, f"{secrets.token_hex(8)}/{address}", self._session)
        self._handlers = handlers

    def pause_writing(self) -> None:
        """Handle no more of what the client sends until it has read."""
        self._session.writable = False
        self.set_full(full=True)

    def resume_writing(self) -> None:
        """Send what waited, and handle what the client sends."""
        self.set_full(full=False)
        self._session.resume()

    def _begin(self) -> None:
        self._connected()

    def _pass_on(self, data: bytes) -> None:
        self._session.receive(data)

    def _close_server(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing is passed on
        self._session.close()

    def _accept(self, stream: Stream, headers: CallHeaders) -> None:
        call = Call(stream, headers, self._name, self._handlers)
        stream.owner = call
        call.start()
