"""A connection that can be cut."""

import contextlib
import socket
import threading
from typing import Self


class Wire:
    """A proxy in front of a server, which can be cut: connections stay open, and silent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = host, int(port)
        self._whole = threading.Event()
        self._whole.set()
        self._answers = threading.Event()
        self._answers.set()
        self._last = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def cut(self) -> None:
        """Let nothing pass."""
        self._whole.clear()

    def cut_answers_to(self, last: bytes) -> None:
        """Let no answer pass once the client has sent something, which still passes."""
        self._last = last

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
                far = socket.create_connection(self._server)
                self._sockets.append(far)
                for ends in ((near, far, True), (far, near, False)):
                    thread = threading.Thread(target=self._pass, args=ends)
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and self._last and self._last in data:
                    self._answers.clear()
                self._whole.wait()
                if not asks:
                    self._answers.wait()
                target.sendall(data)
        self._whole.wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
