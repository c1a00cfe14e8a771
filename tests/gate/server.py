"""Run the services of the gate on one of the two servers, until SIGTERM.

    python -m tests.gate.server native|grpcio ADDRESS [CERTIFICATE KEY]

Prints the addresses of the plain port and, with a certificate, of the encrypted one. `grpcio` is
`grpc.aio.server` as it is, which the tests compare with.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from synergai.wire.credentials import Identity, server_context
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.wire.native.server import NativeServer
from tests.gate.service import Echo, TestService

SERVERS: Final = ("native", "grpcio")
CERTIFICATES: Final = Path(__file__).parents[1] / "integration" / "tls"
AUTHORITY: Final = CERTIFICATES / "ca.pem"
_GRACE_S: Final = 10.0
_ANY: Final = "127.0.0.1:0"


class Running(NamedTuple):
    """A server in a process.

    Attributes:
        plain: address of its plain port.
        encrypted: address of its port with TLS.
    """

    process: subprocess.Popen[str]
    plain: str
    encrypted: str

    def stop(self) -> None:
        """Let the server end its calls and exit."""
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def running(kind: str, log: Path, address: str = _ANY) -> Iterator[Running]:
    """Run a server in a process that ends with the context; what it logs goes to a file."""
    files = [str(CERTIFICATES / name) for name in ("server.pem", "server.key")]
    command = [sys.executable, "-m", __name__, kind, address, *files]
    with (
        log.open("a") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            plain, encrypted = process.stdout.readline().split()
            yield Running(process, plain, encrypted)
        finally:
            process.kill()


async def _serve(kind: str, address: str, certificate: Path, key: Path) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    serve = _serve_natively if kind == "native" else _serve_by_grpcio
    await serve(address, certificate, key, stopped)


async def _serve_natively(
    address: str, certificate: Path, key: Path, stopped: asyncio.Event
) -> None:
    tls = server_context(certificate, key, http2=True)
    servers = [NativeServer(1000, DEFAULT_MAX_MESSAGE_BYTES) for _ in range(2)]
    bound = servers[0].bind(address), servers[1].bind(_ANY, tls)
    handlers = _handlers()
    for server in servers:
        server.start(handlers)
    print(*bound, flush=True)
    await stopped.wait()
    await asyncio.gather(*(server.stop(_GRACE_S) for server in servers))


async def _serve_by_grpcio(
    address: str, certificate: Path, key: Path, stopped: asyncio.Event
) -> None:
    options = [
        (f"grpc.max_{way}_message_length", DEFAULT_MAX_MESSAGE_BYTES) for way in ("receive", "send")
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(_handlers())
    identity = Identity.read(certificate, key)
    assert identity is not None
    credentials = grpc.ssl_server_credentials([(identity.key, identity.certificate)])
    ports = server.add_insecure_port(address), server.add_secure_port(_ANY, credentials)
    await server.start()
    print(*(f"127.0.0.1:{port}" for port in ports), flush=True)
    await stopped.wait()
    await server.stop(_GRACE_S)


def _handlers() -> tuple[grpc.GenericRpcHandler, ...]:
    return Echo().handlers(), TestService().handlers()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
