"""Records of the fleet page, as the browser gets them in JSON.

A record replaces an earlier one of the same kind and id, so a state and a change of it look alike.
Times are seconds on the gateway's monotonic clock; an infinite one becomes null.
"""

from __future__ import annotations

import math

from msgspec import Struct, json


def _kind(name: str) -> str:
    return name.removeprefix("Page").lower()


class PageRecord(Struct, kw_only=True, tag_field="kind", tag=_kind, omit_defaults=True, gc=False):
    """Anything that the page shows; `id` is unique among the records of a kind."""

    id: str


class PageWorker(PageRecord, kw_only=True):
    """A worker; `state` is ``serving``, ``draining``, ``ejected`` or ``left``."""

    worker_class: str
    engines: tuple[str, ...] = ()
    state: str = "serving"
    mode: str = ""
    watts: float | None = None


class PageJob(PageRecord, kw_only=True):
    """A job, or a single request; `state` is ``open`` until it ends."""

    engine: str
    queries: int
    arrival: float
    deadline: float = math.inf
    priority: int = 0
    tenant: str = ""
    single: bool = False
    state: str = "open"
    ended: float | None = None
    reason: str = ""


class PageAssignment(PageRecord, kw_only=True):
    """Queries of a job on a worker, from their dispatch at `at` until they ended there.

    Attributes:
        setup_s: estimated; `estimate_s` includes it, and the work ahead on the worker.
        started: when setup was over, as far as the worker told.
    """

    job: str
    worker: str
    engine: str
    configuration: str
    first: int
    count: int
    at: float
    setup_s: float = 0.0
    estimate_s: float = 0.0
    started: float | None = None
    done: int = 0
    ended: float | None = None
    outcome: str = ""
    detail: str = ""


class Incident(PageRecord, kw_only=True):
    """An event of the fleet, for people."""

    at: float
    text: str
    worker: str = ""


class Second(PageRecord, kw_only=True):
    """What ended within one second; `omitted` is the number of requests without a record."""

    at: int
    met: int = 0
    violated: int = 0
    omitted: int = 0


class Batch(Struct, gc=False):
    """The records that changed until a time."""

    at: float
    records: list[PageRecord]


encode = json.Encoder().encode
