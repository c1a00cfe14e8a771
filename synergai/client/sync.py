"""A blocking client, for scripts and notebooks.

::

    with synergai.SyncClient("127.0.0.1:8001") as client:
        result = client.infer("onnx_digits", {"image": pixels}, deadline=0.5)
        job = client.submit("onnx_digits", queries=500, qos=20.0)
        print(job.wait().violated)

It runs a `Client` on an event loop in a background thread and is thread-safe. All blocking clients
of a process share that loop, because gRPC supports one event loop per process.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterable, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from synergai.client.client import Client
from synergai.client.forks import check_not_forked, is_forked
from synergai.errors import InvalidInput, SynergaiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from synergai.client.fleet import WorkerStatus
    from synergai.client.input_sources import JobInputs
    from synergai.client.jobs import JobHandle
    from synergai.client.requests import Parameters
    from synergai.client.store import StoreContent, StoredEngine
    from synergai.client.streaming import InferResult, Inputs, ManyInputs
    from synergai.client.version_policy import VersionPolicy
    from synergai.data.results import JobResult
    from synergai.domain import Engine, JobState
    from synergai.jobs import JobStatus
    from synergai.profiles.dictionary import ProfileEntry

T = TypeVar("T")

_END: Any = object()


class SyncClient:
    """Blocking client of a gateway; use it as a context manager.

    Takes the arguments of `Client`. Interrupting a call (Ctrl-C) cancels it on the gateway.

    Raises:
        InvalidInput: an argument is not valid, or it is used inside a running event loop.
        NotSupported: the process was forked from one that has used a client.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = Client(*args, **options)
        self._is_open = False

    def __enter__(self) -> Self:
        _check_no_running_loop()
        if self._is_open:
            raise InvalidInput("the client is already open")
        shared_loop().run(self._client.__aenter__())
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        if not is_forked():
            shared_loop().run(self._client.__aexit__(kind, error, trace))

    @property
    def _loop(self) -> LoopThread:
        if not self._is_open:
            raise InvalidInput("use the client in a `with SyncClient(...) as client:` block")
        return shared_loop()

    # --- inference ----------------------------------------------------------------------

    def infer(
        self,
        engine: str,
        inputs: Inputs,
        *,
        deadline: float | None = None,
        priority: int = 0,
        outputs: Sequence[str] = (),
        version: str = "",
        min_accuracy: float = 0.0,
        parameters: Parameters | None = None,
    ) -> InferResult:
        """Run one query; see `Client.infer`."""
        return self._loop.run(
            self._client.infer(
                engine,
                inputs,
                deadline=deadline,
                priority=priority,
                outputs=outputs,
                version=version,
                min_accuracy=min_accuracy,
                parameters=parameters,
            )
        )

    def stream(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        deadline: float | None = None,
        priority: int = 0,
        outputs: Sequence[str] = (),
        version: str = "",
        min_accuracy: float = 0.0,
        parameters: Parameters | None = None,
        window: int = 16,
    ) -> Iterator[InferResult]:
        """Run many queries over one call and yield their results in order; see `Client.stream`.

        A failed query has its error in its own result.
        """
        results = self._client.stream(
            engine,
            _advanced_in_threads(inputs),
            deadline=deadline,
            priority=priority,
            outputs=outputs,
            version=version,
            min_accuracy=min_accuracy,
            parameters=parameters,
            window=window,
        )
        return self._loop.iterate(results)

    # --- jobs ---------------------------------------------------------------------------

    def submit(
        self,
        engine: str,
        *,
        queries: int | None = None,
        inputs: JobInputs | None = None,
        qos: float | None = None,
        by: datetime | None = None,
        priority: int = 0,
        tenant: str = "",
        version: str = "",
        min_accuracy: float = 0.0,
        idempotency_key: str = "",
        outputs: Sequence[str] = (),
        max_failures: int | None = None,
    ) -> SyncJobHandle:
        """Submit a job; see `Client.submit`."""
        handle = self._loop.run(
            self._client.submit(
                engine,
                queries=queries,
                inputs=inputs,
                qos=qos,
                by=by,
                priority=priority,
                tenant=tenant,
                version=version,
                min_accuracy=min_accuracy,
                idempotency_key=idempotency_key,
                outputs=outputs,
                max_failures=max_failures,
            )
        )
        return SyncJobHandle(self._loop, handle)

    def job(self, job_id: str) -> SyncJobHandle:
        """Return the handle of a job; see `Client.job`."""
        return SyncJobHandle(self._loop, self._client.job(job_id))

    def jobs(self, states: Sequence[JobState] = (), limit: int = 100) -> list[JobStatus]:
        """List jobs, newest first; see `Client.jobs`."""
        return self._loop.run(self._client.jobs(states, limit))

    def run(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        queries: int | None = None,
        qos: float | None = None,
        priority: int = 0,
        tenant: str = "",
        version: str = "",
        min_accuracy: float = 0.0,
    ) -> list[InferResult]:
        """Run a job on these inputs and return its results in order; see `Client.run`."""
        if queries is None and isinstance(inputs, Sized):
            queries = len(inputs)
        advanced = _advanced_in_threads(inputs)

        async def results() -> list[InferResult]:
            job = self._client.run(
                engine,
                advanced,
                queries=queries,
                qos=qos,
                priority=priority,
                tenant=tenant,
                version=version,
                min_accuracy=min_accuracy,
            )
            async with job:
                return await job.results()

        return self._loop.run(results())

    # --- the fleet ----------------------------------------------------------------------

    def dictionary(self) -> list[ProfileEntry]:
        """List the entries of the gateway's dictionary; see `Client.dictionary`."""
        return self._loop.run(self._client.dictionary())

    def workers(self) -> list[WorkerStatus]:
        """List the registered workers; see `Client.workers`."""
        return self._loop.run(self._client.workers())

    def engine(self, name: str, *, deadline: float | None = None) -> Engine:
        """Return an engine's inputs and outputs; see `Client.engine`."""
        return self._loop.run(self._client.engine(name, deadline=deadline))

    def load(self, engine: str, *, deadline: float | None = None) -> None:
        """Load an engine on every worker that has it; see `Client.load`."""
        self._loop.run(self._client.load(engine, deadline=deadline))

    def unload(self, engine: str) -> None:
        """Take an engine out of service until it is loaded again; see `Client.unload`."""
        self._loop.run(self._client.unload(engine))

    def forget(self, engine: str) -> None:
        """Forget which description of an engine clients have relied on; see `Client.forget`."""
        self._loop.run(self._client.forget(engine))

    def push_engine(
        self,
        engine: str,
        version: int,
        manifest: bytes,
        paths: Mapping[str, Path],
        *,
        place: Sequence[str] = (),
    ) -> StoredEngine:
        """Push a version of an engine into the gateway's store; see `Client.push_engine`."""
        return self._loop.run(
            self._client.push_engine(engine, version, manifest, paths, place=place)
        )

    def stored_engines(self) -> StoreContent:
        """Return what the gateway's store has; see `Client.stored_engines`."""
        return self._loop.run(self._client.stored_engines())

    def place_engine(self, engine: str, version: int, place: Sequence[str]) -> StoredEngine:
        """Change which workers fetch a version; see `Client.place_engine`."""
        return self._loop.run(self._client.place_engine(engine, version, place))

    def remove_engine(self, engine: str, version: int) -> int:
        """Remove a version from the store; see `Client.remove_engine`."""
        return self._loop.run(self._client.remove_engine(engine, version))

    def version_policy(self, engine: str) -> VersionPolicy:
        """Return which version requests get that name none; see `Client.version_policy`."""
        return self._loop.run(self._client.version_policy(engine))

    def roll_out(
        self, engine: str, version: str, share: float, *, deadline: float | None = None
    ) -> VersionPolicy:
        """Give a version a share of the requests; see `Client.roll_out`."""
        return self._loop.run(self._client.roll_out(engine, version, share, deadline=deadline))

    def promote(self, engine: str) -> VersionPolicy:
        """End a rollout with its new version; see `Client.promote`."""
        return self._loop.run(self._client.promote(engine))

    def roll_back(self, engine: str) -> VersionPolicy:
        """End a rollout with the old version; see `Client.roll_back`."""
        return self._loop.run(self._client.roll_back(engine))

    def pin(self, engine: str, version: str, *, deadline: float | None = None) -> VersionPolicy:
        """Give all requests that name no version this one; see `Client.pin`."""
        return self._loop.run(self._client.pin(engine, version, deadline=deadline))

    def ready(self, engine: str = "") -> bool:
        """Return whether the gateway, or one of its engines, is ready; see `Client.ready`."""
        return self._loop.run(self._client.ready(engine))


class SyncJobHandle:
    """Reference to a job at the gateway; every call blocks.

    Attributes:
        id: the job's id.
    """

    def __init__(self, loop: LoopThread, handle: JobHandle) -> None:
        self._loop = loop
        self._handle = handle
        self.id = handle.id

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def status(self) -> JobStatus:
        """Return the job's current status; see `JobHandle.status`."""
        return self._loop.run(self._handle.status())

    def watch(self) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change; see `JobHandle.watch`."""
        return self._loop.iterate(self._handle.watch())

    def wait(self) -> JobStatus:
        """Wait for the job to end; see `JobHandle.wait`."""
        return self._loop.run(self._handle.wait())

    def results(self, *, follow: bool = True) -> Iterator[tuple[int, JobResult]]:
        """Yield the results of a job over its own inputs; see `JobHandle.results`."""
        return self._loop.iterate(self._handle.results(follow=follow))

    def cancel(self) -> JobStatus:
        """Stop the job at its next query; see `JobHandle.cancel`."""
        return self._loop.run(self._handle.cancel())


class LoopThread:
    """Event loop in a background thread, for calls from other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="synergai-client", daemon=True).start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call and return its result; interrupting the caller cancels it.

        Raises:
            InvalidInput: the calling thread runs an event loop.
            NotSupported: the process was forked from one that has used a client.
        """
        try:
            check_not_forked()
            _check_no_running_loop()
        except SynergaiError:
            call.close()
            raise
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator; close it when the caller stops."""
        # A cancelled step still runs for a moment, in which the generator cannot be closed.
        step = asyncio.Lock()

        async def following() -> tuple[T, ...]:
            async with step:
                return () if (item := await anext(items, _END)) is _END else (item,)

        async def close() -> None:
            async with step:
                await items.aclose()

        try:
            while found := self.run(following()):
                yield found[0]
        finally:
            self.run(close())


_starting = threading.Lock()


def shared_loop() -> LoopThread:
    """Return the process's event loop for blocking clients, which ends with the process."""
    with _starting:  # a cache alone lets two threads start a loop each
        return _shared_loop()


@functools.cache
def _shared_loop() -> LoopThread:
    return LoopThread()


def _advanced_in_threads(items: ManyInputs) -> ManyInputs:
    """Return `items`, such that the caller's own generators do not run on the shared loop."""
    if isinstance(items, AsyncIterable | list | tuple):
        return items
    return _advance_in_threads(iter(items))


async def _advance_in_threads(items: Iterator[Inputs]) -> AsyncGenerator[Inputs, None]:
    while (item := await asyncio.to_thread(next, items, _END)) is not _END:
        yield item


def _check_no_running_loop() -> None:
    """Raise `InvalidInput` if the calling thread runs an event loop, which would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput("SyncClient blocks the running event loop; use synergai.Client there")
