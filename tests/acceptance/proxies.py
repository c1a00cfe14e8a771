"""Proxies with the configurations of the guide."""

import re
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar, Final

from tests.gate.server import CERTIFICATES
from tests.waiting import wait_until

_PAGE: Final = Path(__file__).parents[2] / "docs" / "guide" / "proxies.md"


class Proxy(ABC):
    """A proxy in front of a server.

    Args:
        folder: folder of its files.
        port: its port.
        upstream: address of the server.
        rest: address of the REST API.

    Attributes:
        address: its address, with TLS.
        program: its program.
        stop: the signal that lets it complete its calls and end.
        shares: whether calls of several clients share a connection to the server.
    """

    program: ClassVar[str]
    stop: ClassVar[signal.Signals]
    shares = True
    _language: ClassVar[str]
    _bound: ClassVar[tuple[str, str]]

    def __init__(self, folder: Path, port: int, upstream: str, rest: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        bound, other = self._bound
        self._changes = {
            bound: other.format(port),
            "127.0.0.1:8001": upstream,
            "127.0.0.1:8002": rest,
            **self._files(),
        }

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the proxy until the context ends."""
        command = self._command(self._configuration())
        with (
            (self._folder / "proxy.log").open("ab") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                wait_until(self._listens)
                yield process
            finally:
                process.terminate()

    @abstractmethod
    def _command(self, configuration: str) -> list[str]:
        """Write the configuration; return the command that starts the proxy in the foreground."""

    def _files(self) -> dict[str, str]:
        """Return the files of the page's certificate, and those in their place."""
        names = {"/etc/ssl/gateway.pem": "server.pem", "/etc/ssl/gateway.key": "server.key"}
        return {old: str(CERTIFICATES / name) for old, name in names.items()}

    def _configuration(self) -> str:
        found = re.search(rf"(?ms)^```{self._language}\n(.*?)^```$", _PAGE.read_text())
        assert found is not None
        text = found[1]
        for old, new in self._changes.items():
            assert old in text, f"{_PAGE.name} has no {old}"
            text = text.replace(old, new)
        return text

    def _listens(self) -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


class Nginx(Proxy):
    """nginx, with its files in the folder."""

    program, stop, shares = "nginx", signal.SIGQUIT, False
    _language, _bound = "nginx", ("listen 443", "listen {}")

    def _command(self, configuration: str) -> list[str]:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "\n".join(f"{kind}_temp_path {self._folder}/{kind};" for kind in kinds)
        path = self._folder / "nginx.conf"
        path.write_text(
            f"daemon off; pid {self._folder}/pid; error_log {self._folder}/error.log;\n"
            f"events {{}}\nhttp {{ access_log off;\n{paths}\n{configuration}\n}}\n"
        )
        return [self.program, "-e", "stderr", "-c", str(path)]


class Haproxy(Proxy):
    """HAProxy."""

    program, stop = "haproxy", signal.SIGUSR1
    _language, _bound = "haproxy", ("0.0.0.0:443", "127.0.0.1:{}")

    def _command(self, configuration: str) -> list[str]:
        path = self._folder / "haproxy.cfg"
        # Each thread has connections of its own.
        path.write_text(configuration.replace("global\n", "global\n    nbthread 1\n"))
        return [self.program, "-db", "-f", str(path)]

    def _files(self) -> dict[str, str]:
        """Return the one file that has certificate and key."""
        both = self._folder / "both.pem"
        both.write_text(
            "".join((CERTIFICATES / f"server.{end}").read_text() for end in ("pem", "key"))
        )
        return {"/etc/ssl/gateway.pem": str(both)}


class Caddy(Proxy):
    """Caddy, without the port of its administration."""

    program, stop = "caddy", signal.SIGTERM
    _language, _bound = "caddyfile", ("gateway.example.org", ":{}")

    def _command(self, configuration: str) -> list[str]:
        path = self._folder / "Caddyfile"
        path.write_text(
            "{\n\tadmin off\n\tauto_https disable_redirects\n\tgrace_period 10s\n"
            f"\tstorage file_system {self._folder}\n}}\n{configuration}"
        )
        return [self.program, "run", "--config", str(path), "--adapter", "caddyfile"]


PROXIES: Final[dict[str, Callable[[Path, int, str, str], Proxy]]] = {
    "nginx": Nginx,
    "haproxy": Haproxy,
    "caddy": Caddy,
}
"""The proxies, by their programs."""
