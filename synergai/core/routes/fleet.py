"""A fleet as a planner of routes sees it: its workers, and the links between hosts."""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.domain import MAX_THREADS, EngineName, WorkerClass  # msgspec reads the annotations
from synergai.names import validate_name
from synergai.runtime.text import suggestion

BYTES_PER_MBIT: Final = 125_000.0
MIN_MBIT_S: Final = 0.001
MAX_MBIT_S: Final = 1e6
MAX_WORKERS: Final = 64


class FleetWorker(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A worker of a fleet.

    Attributes:
        memory_mb: what its engine hosts may take, in units of 10^6 bytes.
        cores: those that its engines may use; 0 if not known.
        query_s: seconds of a query with one thread, by engine, as its agent has measured them.
    """

    id: str
    worker_class: WorkerClass
    memory_mb: Annotated[float, Meta(gt=0, le=1e9)] = math.inf
    cores: Annotated[int, Meta(ge=0, le=MAX_THREADS)] = 0
    query_s: dict[EngineName, Annotated[float, Meta(gt=0)]] = {}


class Speed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bandwidth and latency of a link."""

    mbit_s: Annotated[float, Meta(ge=MIN_MBIT_S, le=MAX_MBIT_S)]
    latency_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0

    def link(self) -> Link:
        """Return the link that a planner sees."""
        return Link(self.mbit_s * BYTES_PER_MBIT, self.latency_ms / 1000)


class Pair(Speed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link from one host to another."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class FleetFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers and links, as in a fleet file.

    A link has the same bandwidth and latency in both directions, unless the file has the other
    direction as well.

    Attributes:
        exits: share of the queries that leave at the early exit of a stage, as a gateway has
            learned it.

    Raises:
        ValueError: it has no workers, or two of one name, or links that contradict each other or
            name an unknown host.
    """

    workers: Annotated[tuple[FleetWorker, ...], Meta(max_length=MAX_WORKERS)]
    pairs: tuple[Pair, ...] = msgspec.field(name="links", default=())
    default_link: Speed = Speed(mbit_s=1000.0)
    exits: dict[EngineName, Annotated[float, Meta(ge=0, le=1)]] = {}

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("it has no [[workers]]")
        hosts = {GATEWAY}
        for worker in self.workers:
            validate_name(worker.id, "worker id")
            validate_name(worker.worker_class, "worker class")
            if worker.id in hosts:
                taken = "belongs to the gateway" if worker.id == GATEWAY else "is there twice"
                raise ValueError(f"the worker id {worker.id!r} {taken}; give each worker its own")
            hosts.add(worker.id)
        known = set()
        for pair in self.pairs:
            for host in (pair.source, pair.target):
                if host not in hosts:
                    raise ValueError(
                        f"a link names the unknown worker {host!r}{suggestion(host, hosts)}"
                    )
            where = f"the link from {pair.source!r} to {pair.target!r}"
            if pair.source == pair.target:
                raise ValueError(f"{where} leads nowhere; remove it")
            if (pair.source, pair.target) in known:
                raise ValueError(f"{where} is there twice; keep one")
            known.add((pair.source, pair.target))

    def links(self) -> Links:
        """Return the links between its hosts."""
        links = {(pair.source, pair.target): pair.link() for pair in self.pairs}
        both = {(target, source): link for (source, target), link in links.items()}
        return Links(both | links, self.default_link.link())
