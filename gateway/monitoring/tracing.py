"""Traces of sampled requests, exported by OTLP to an OpenTelemetry collector.

Spans are made after a request has ended, from times that are known anyway. A request that is not
sampled pays for a look at its trace context only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from synergai.errors import InvalidInput, SynergaiError
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from synergai.domain import Job
    from synergai.runtime.clock import Clock

_VALID: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1
_UNSAMPLED: Final = "02468ace"
"""Last digits of flags without `_SAMPLED`."""
_LENGTH: Final = 55
_MAX_NAME: Final = 128
"""Characters of an engine's name as a client wrote it."""
_CLOSE_S: Final = 2.0
"""Time that the last spans get to be exported when the gateway stops."""
_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)
_LOGGED_EVERY_S: Final = 60.0


class TracedRun(Struct, frozen=True):
    """The last run of a request on a worker; instants are monotonic seconds."""

    worker: str
    configuration: str
    dispatched_at: float
    compute_s: float
    estimate_s: float


class Tracing:
    """Chooses the requests that are traced, and exports their spans in a thread.

    Args:
        endpoint: URL of the collector, such as ``http://localhost:4317``. The other settings of
            the exporter are the environment variables of OpenTelemetry.
        share: share of the requests without a trace context that are traced, 0 to 1.
    """

    def __init__(self, endpoint: str, share: float, clock: Clock) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"--traces needs {error.name}, which is not installed; {pip_install('tracing')}"
            ) from None
        self._api, self._share, self.clock = trace, share, clock
        resource = Resource.create({"service.name": "synergai-gateway"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, insecure=not endpoint.startswith("https:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("synergai")
        rarely = _Rarely()
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(rarely)

    def begin_trace(self, traceparent: str) -> Trace | None:
        """Return the trace of a new request if it is sampled; an invalid context is ignored."""
        if len(traceparent) == _LENGTH and traceparent[-1] in _UNSAMPLED:
            return None  # the most frequent case
        found = _VALID.fullmatch(traceparent) if traceparent else None
        if found is None:
            return Trace(self, None) if random.random() < self._share else None
        if not int(found[3], 16) & _SAMPLED:
            return None
        parent = self._api.SpanContext(
            int(found[1], 16),
            int(found[2], 16),
            is_remote=True,
            trace_flags=self._api.TraceFlags(_SAMPLED),
        )
        return Trace(self, self._api.set_span_in_context(self._api.NonRecordingSpan(parent)))

    async def close(self) -> None:
        """Export what is left, unless the collector takes too long."""
        # A thread that the end of the process does not wait for.
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, _CLOSE_S)

    def span(
        self,
        name: str,
        times: tuple[float, float],
        context: Context | None = None,
        *,
        attributes: Mapping[str, Any],
        error: SynergaiError | None = None,
        kind: str = "INTERNAL",
    ) -> Span:
        begin_ns, end_ns = (round(1e9 * self.clock.to_unix(each)) for each in times)
        span = self._tracer.start_span(
            name,
            context,
            self._api.SpanKind[kind],
            {key: value for key, value in attributes.items() if value != ""},
            start_time=begin_ns,
        )
        if error is not None:
            status = self._api.Status(self._api.StatusCode.ERROR, str(error))
            span.set_status(status)
        span.end(end_ns)
        return span

    def context_of(self, span: Span) -> Context:
        """Return the context in which a span has children."""
        return self._api.set_span_in_context(span)


class Trace:
    """The trace of one request that is sampled."""

    __slots__ = ("_context", "_tracing")

    def __init__(self, tracing: Tracing, context: Context | None) -> None:
        self._tracing, self._context = tracing, context

    def refuse(self, engine: str, request_id: str, error: SynergaiError) -> None:
        now = self._tracing.clock.now()
        attributes = {
            "synergai.engine": engine[:_MAX_NAME],
            "synergai.request_id": request_id,
        }
        self._tracing.span(
            "infer", (now, now), self._context, attributes=attributes, error=error, kind="SERVER"
        )

    def end(self, job: Job, run: TracedRun | None, error: SynergaiError | None, now: float) -> str:
        """Record a request that has ended; return the id of its trace, in hexadecimal digits."""
        tracing = self._tracing
        attributes = {
            "synergai.engine": job.engine,
            "synergai.request_id": job.client_id or job.id,
            "synergai.tenant": job.tenant,
            "synergai.priority": job.priority,
        }
        if job.deadline < math.inf:
            attributes["synergai.deadline_s"] = job.deadline - job.arrival
        whole = tracing.span(
            "infer",
            (job.arrival, now),
            self._context,
            attributes=attributes,
            error=error,
            kind="SERVER",
        )
        inside = tracing.context_of(whole)
        dispatched = now if run is None else run.dispatched_at
        tracing.span("queue", (job.arrival, dispatched), inside, attributes={})
        if run is not None:
            attributes = {
                "synergai.worker": run.worker,
                "synergai.configuration": run.configuration,
                "synergai.estimate_s": run.estimate_s,
                "synergai.compute_s": run.compute_s,
            }
            tracing.span("run", (dispatched, now), inside, attributes=attributes)
        return f"{whole.get_span_context().trace_id:032x}"


class _Rarely(logging.Filter):
    """Passes one message a minute: the exporter logs each attempt to reach a collector."""

    def __init__(self) -> None:
        super().__init__()
        self._next_at = 0.0

    def filter(self, _record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + _LOGGED_EVERY_S
        return True
