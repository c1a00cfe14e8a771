"""Proxies with the configurations of the guide."""

import re
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tests.gate.server import CERTIFICATES
from tests.waiting import wait_until

_BOTH: Final = ("pem", "key")
_PAGE: Final = Path(__file__).parents[2] / "docs" / "guide" / "proxies.md"


class Proxy(ABC):
    """A proxy in front of a server.

    Args:
        folder: folder of its files.
        port: its port.
        changes: texts of the page's configuration, and what is in their place here.

    Attributes:
        address: its address, with TLS.
    """

    language: str
    program: str
    stop: signal.Signals
    """Lets it complete its calls and end."""

    def __init__(self, folder: Path, port: int, changes: Mapping[str, str]) -> None:
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self._changes = {**self.files(), **changes}

    def files(self) -> dict[str, str]:
        """Return the files of the page's certificate, and those in their place."""
        names = {"/etc/ssl/gateway.pem": "server.pem", "/etc/ssl/gateway.key": "server.key"}
        return {old: str(CERTIFICATES / name) for old, name in names.items()}

    @abstractmethod
    def command(self, configuration: str) -> list[str]:
        """Write the configuration; return the command that starts the proxy in the foreground."""

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the proxy until the context ends."""
        with (
            (self._folder / "proxy.log").open("ab") as log,
            subprocess.Popen(
                self.command(self._configuration()), stdout=log, stderr=log
            ) as process,
        ):
            try:
                wait_until(self._listens)
                yield process
            finally:
                process.terminate()

    def _configuration(self) -> str:
        [text] = re.findall(rf"(?ms)^```{self.language}\n(.*?)^```$", _PAGE.read_text())
        for old, new in self._changes.items():
            assert old in text, f"{_PAGE.name} has no {old}"
            text = text.replace(old, new)
        return text

    def _listens(self) -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


class Nginx(Proxy):
    """nginx, with its files in the folder."""

    language, program, stop = "nginx", "nginx", signal.SIGQUIT

    def __init__(self, folder: Path, port: int, upstream: str, rest: str) -> None:
        super().__init__(
            folder,
            port,
            {"listen 443": f"listen {port}", "127.0.0.1:8001": upstream, "127.0.0.1:8002": rest},
        )

    def command(self, configuration: str) -> list[str]:
        """Wrap the configuration, which is what belongs into `http`."""
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "\n".join(f"{kind}_temp_path {self._folder}/{kind};" for kind in kinds)
        (self._folder / "nginx.conf").write_text(
            f"daemon off; pid {self._folder}/pid; error_log {self._folder}/error.log;\n"
            f"events {{}}\nhttp {{ access_log off;\n{paths}\n{configuration}\n}}\n"
        )
        return [self.program, "-e", "stderr", "-c", str(self._folder / "nginx.conf")]


class Haproxy(Proxy):
    """HAProxy."""

    language, program, stop = "haproxy", "haproxy", signal.SIGUSR1

    def __init__(self, folder: Path, port: int, upstream: str, rest: str) -> None:
        changes = {"0.0.0.0:443": f"127.0.0.1:{port}"}
        super().__init__(
            folder, port, {**changes, "127.0.0.1:8001": upstream, "127.0.0.1:8002": rest}
        )

    def files(self) -> dict[str, str]:
        """Return the one file that has certificate and key."""
        both = self._folder / "both.pem"
        both.write_text("".join((CERTIFICATES / f"server.{end}").read_text() for end in _BOTH))
        return {"/etc/ssl/gateway.pem": str(both)}

    def command(self, configuration: str) -> list[str]:
        """Write the configuration as it is."""
        (self._folder / "haproxy.cfg").write_text(configuration)
        return [self.program, "-db", "-f", str(self._folder / "haproxy.cfg")]


class Caddy(Proxy):
    """Caddy, without the port of its administration."""

    language, program, stop = "caddyfile", "caddy", signal.SIGTERM

    def __init__(self, folder: Path, port: int, upstream: str, rest: str) -> None:
        changes = {"gateway.example.org": f":{port}", "127.0.0.1:8001": upstream}
        super().__init__(folder, port, {**changes, "127.0.0.1:8002": rest})

    def command(self, configuration: str) -> list[str]:
        """Write the configuration behind global options."""
        path = self._folder / "Caddyfile"
        path.write_text(
            "{\n\tadmin off\n\tauto_https disable_redirects\n\tgrace_period 10s\n"
            f"\tstorage file_system {self._folder}\n}}\n{configuration}"
        )
        return [self.program, "run", "--config", str(path), "--adapter", "caddyfile"]


PROXIES: Final = {"nginx": Nginx, "HAProxy": Haproxy, "Caddy": Caddy}


def is_installed(name: str) -> bool:
    """Return whether the program of a proxy is on this machine."""
    return shutil.which(PROXIES[name].program) is not None
