"""A connection that can be slow, break, or be cut."""

import contextlib
import socket
import threading
import time
from typing import Self

_PIECE = 4096


class Wire:
    """A proxy in front of a server, which can be cut: connections stay open, and silent.

    Args:
        address: of the server.
        bytes_per_s: what passes in each direction, of all connections together.

    Attributes:
        passed: bytes that the server has sent.
    """

    def __init__(self, address: str, bytes_per_s: float = 0.0) -> None:
        self.passed = 0
        self._bytes_per_s = bytes_per_s
        self._free_at = dict.fromkeys((True, False), 0.0)
        self._turn = threading.Lock()
        host, _, port = address.rpartition(":")
        self._server = host, int(port)
        self._whole = threading.Event()
        self._whole.set()
        self._answers = threading.Event()
        self._answers.set()
        self._last = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._limit_buffer(self._listener)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # no further connections from now on
        self.break_off()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def cut(self) -> None:
        self._whole.clear()

    def cut_answers_to(self, last: bytes) -> None:
        """Let no answer pass once the client has sent something, which still passes."""
        self._last = last

    def break_off(self) -> None:
        """Close all connections; further ones can be made."""
        for each in self._sockets[1:]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let everything pass again."""
        self._last = b""
        self._whole.set()
        self._answers.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                far = socket.socket()
                self._sockets.append(far)
                self._limit_buffer(far)
                far.connect(self._server)
                for ends in ((near, far, True), (far, near, False)):
                    thread = threading.Thread(target=self._pass, args=ends)
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE if self._bytes_per_s else 65536):
                if asks and self._last and self._last in data:
                    self._answers.clear()
                self._whole.wait()
                if not asks:
                    self._answers.wait()
                if self._bytes_per_s:
                    self._wait_for_turn(len(data), asks)
                target.sendall(data)
                self.passed += 0 if asks else len(data)
        self._whole.wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _wait_for_turn(self, size: int, asks: bool) -> None:
        with self._turn:
            now = time.monotonic()
            self._free_at[asks] = max(now, self._free_at[asks]) + size / self._bytes_per_s
            wait_s = self._free_at[asks] - now
        time.sleep(wait_s)

    def _limit_buffer(self, end: socket.socket) -> None:
        """Keep the bytes that wait for a slow link at its sender, as they do behind a modem."""
        if self._bytes_per_s:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * _PIECE)
