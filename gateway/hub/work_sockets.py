"""Where agents open their work sockets, see ``synergai.protocol.work_socket``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.work_socket import WorkSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.protocol.request_codec import Buffer

_INTRODUCE_WITHIN_S: Final = 10.0
_MAX_SESSION_BYTES: Final = 64


class WorkSocketServer:
    """A server of work sockets.

    Args:
        opened: called with the session that a line shows and the line, to take it over. A
            `SynergaiError` that it raises ends the line.
    """

    def __init__(self, opened: Callable[[str, WorkSocket], None]) -> None:
        self._opened = opened
        self._server: asyncio.Server
        self._sockets: set[WorkSocket] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port that was taken; 0 takes a free one.

        Raises:
            Unavailable: the port is in use, or the host is not one of this machine.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connected, host.strip("[]"), port)
        except OSError as error:
            raise Unavailable(
                f"cannot listen for work sockets on {host}:{port}: {error.strerror}; "
                "choose another port with --work-port"
            ) from error
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    async def close(self) -> None:
        """End all lines."""
        self._server.close()
        for socket in list(self._sockets):
            socket.close()
        await self._server.wait_closed()

    def _connected(self) -> WorkSocket:
        """A new line, which has to show its session before anything else, and soon."""

        def introduced(session: Buffer) -> None:
            patience.cancel()
            self._opened(bytes(session).decode("ascii", "replace"), socket)

        def lost_patience() -> None:
            socket.close(InvalidInput(f"no session was shown within {_INTRODUCE_WITHIN_S:g} s"))

        def ended(_: asyncio.Future[None]) -> None:
            patience.cancel()
            self._sockets.discard(socket)

        socket = WorkSocket(introduced, _MAX_SESSION_BYTES)
        patience = asyncio.get_running_loop().call_later(_INTRODUCE_WITHIN_S, lost_patience)
        socket.closed.add_done_callback(ended)
        self._sockets.add(socket)
        return socket
