"""Registry of the peers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.client import PLAIN_ON_STREAM, TRITON, Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another model server.

    Attributes:
        name: name on the command line and in file names.
        title: product name and version.
        dialect: parsers of its messages.
        note: setup details that are needed to judge its figures.
    """

    name: str
    title: str
    dialect: Dialect = TRITON
    note: str

    @property
    def requirements(self) -> Path:
        """The requirements file with pinned versions."""
        return Path(__file__).with_name(f"requirements-{self.name}.txt")

    @property
    def module(self) -> str:
        """The module that runs the server in its environment."""
        return f"benchmarks.peers.serve_{self.name}"


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer(
            name="triton",
            title="Triton 2.51.0",
            note="The server of the nvidia-pytriton 0.7.0 wheel with its Python backend, one "
            "CPU instance, HTTP and metrics off.",
        ),
        Peer(
            name="kserve",
            title="KServe 0.21.0",
            note="A custom model in its Python server, one process.",
        ),
        Peer(
            name="mlserver",
            title="MLServer 1.7.1",
            dialect=PLAIN_ON_STREAM,
            note="A custom runtime in the server's own process (parallel_workers=0); its stream "
            "carries plain ModelInferResponse messages.",
        ),
        Peer(
            name="ray",
            title="Ray Serve 2.60.0",
            note="One replica behind its gRPC proxy, with the servicer of the Open Inference "
            "Protocol. Its other processes share the machine.",
        ),
    )
}
