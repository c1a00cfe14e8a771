"""A blocking client, for scripts and notebooks.

::

    client = synergai.SyncClient("127.0.0.1:8001")
    result = client.infer("onnx_digits", {"image": pixels}, deadline=0.5)
    job = client.submit("onnx_digits", queries=500, qos=20.0)
    print(job.wait().violated)

It runs a `Client` on an event loop in a background thread, so that it works where another loop
runs, and from several threads. All blocking clients of a process share that loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
import threading
from collections.abc import AsyncIterable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from synergai.client.channel import check_not_forked, is_forked
from synergai.client.client import Client
from synergai.client.jobs import JobHandle
from synergai.client.streaming import advance_in_thread, iterate
from synergai.errors import Cancelled, InvalidInput, SynergaiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
    from typing import Self

    from synergai.client.streaming import Inputs, ManyInputs

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", covariant=True)

_END: Any = object()


class _Blocking(Protocol[C]):
    """Blocking counterpart of an asynchronous object."""

    @property
    def _loop(self) -> LoopThread: ...
    @property
    def _wrapped(self) -> C: ...


def _waiting(
    call: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[C], P], T]:
    """Return the method that waits for the result of an asynchronous one."""

    @functools.wraps(call)
    def method(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(call(self._wrapped, *args, **kwargs))

    return method


def _iterating(
    call: Callable[Concatenate[C, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Blocking[C], P], Iterator[T]]:
    """Return the method that yields the items of an asynchronous generator."""

    @functools.wraps(call)
    def method(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._loop.iterate(call(self._wrapped, *args, **kwargs))

    return method


def _submitting(
    call: Callable[Concatenate[Client, P], Coroutine[Any, Any, JobHandle]],
) -> Callable[Concatenate[_Blocking[Client], P], SyncJobHandle]:
    """Return the method that waits for the handle of a job."""

    @functools.wraps(call)
    def method(self: _Blocking[Client], /, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle:
        return SyncJobHandle(self._loop, self._loop.run(call(self._wrapped, *args, **kwargs)))

    return method


def _iterate_in_thread(items: ManyInputs) -> AsyncIterator[Inputs]:
    if isinstance(items, AsyncIterable | list | tuple):
        return iterate(items)
    return advance_in_thread(iter(items))


class _BackgroundClient(Client):
    """Client on the shared loop, on which the caller's own generators must not run."""

    _iterate = staticmethod(_iterate_in_thread)


def _taking_arguments_of(
    construct: Callable[Concatenate[Client, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[SyncClient, P], None]]:
    """Give a constructor the arguments of the asynchronous client's."""
    return functools.wraps(construct)


class SyncClient:
    """Blocking client of a gateway.

    Takes the arguments of `Client`, and has its methods with the same arguments: `submit` and `job`
    return a `SyncJobHandle`. It opens at the first call, and may be used as a context manager,
    which closes it. Interrupting a call (Ctrl-C) cancels it on the gateway.

    Raises:
        InvalidInput: an argument is not valid.
        NotSupported: the process was forked from one that has used a client.
    """

    @_taking_arguments_of(Client.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._wrapped = _BackgroundClient(*args, **options)

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> Self:
        """Open the client, or open it again after `close`; see `Client.connect`."""
        self._loop.run(self._wrapped.connect())
        return self

    def close(self) -> None:
        """Close the client; calls in flight fail with `Cancelled`, and so do further ones."""
        if not _is_over():
            self._loop.run(self._wrapped.close())

    @property
    def _loop(self) -> LoopThread:
        return shared_loop()

    infer = _waiting(Client.infer)
    stream = _iterating(Client.stream)

    submit = _submitting(Client.submit)
    jobs = _waiting(Client.jobs)

    def job(self, job_id: str) -> SyncJobHandle:
        """Return a handle of a job, without asking the gateway whether it exists."""

        async def handle() -> JobHandle:  # opens the client if need be
            return self._wrapped.job(job_id)

        return SyncJobHandle(self._loop, self._loop.run(handle()))

    ready = _waiting(Client.ready)
    workers = _waiting(Client.workers)
    explain = _waiting(Client.explain)
    dictionary = _waiting(Client.dictionary)
    engine = _waiting(Client.engine)
    load = _waiting(Client.load)
    unload = _waiting(Client.unload)
    forget = _waiting(Client.forget)
    push_engine = _waiting(Client.push_engine)
    stored_engines = _waiting(Client.stored_engines)
    deployments = _waiting(Client.deployments)
    place_engine = _waiting(Client.place_engine)
    remove_engine = _waiting(Client.remove_engine)
    version_policy = _waiting(Client.version_policy)
    roll_out = _waiting(Client.roll_out)
    promote = _waiting(Client.promote)
    roll_back = _waiting(Client.roll_back)
    pin = _waiting(Client.pin)


class SyncJobHandle:
    """Reference to a job at the gateway; has the methods of `JobHandle`, which block."""

    def __init__(self, loop: LoopThread, handle: JobHandle) -> None:
        self._loop = loop
        self._wrapped = handle
        self.id = handle.id

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    status = _waiting(JobHandle.status)
    watch = _iterating(JobHandle.watch)
    wait = _waiting(JobHandle.wait)
    results = _iterating(JobHandle.results)
    cancel = _waiting(JobHandle.cancel)


class LoopThread:
    """Event loop in a background thread, for calls from other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._serve, name="synergai-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            # The caller's code may raise them in a task: they are for who awaits it, not the loop.
            with suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call and return its result; interrupting the caller cancels it."""
        try:
            check_not_forked()
            self._check_can_wait()
        except SynergaiError:
            call.close()
            raise
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except asyncio.CancelledError as error:  # which asyncio makes of the other one
            raise concurrent.futures.CancelledError(*error.args) from error
        except BaseException:
            future.cancel()
            raise

    def _check_can_wait(self) -> None:
        """Raise an error where a call would never return."""
        if sys.is_finalizing():
            raise Cancelled("the interpreter is exiting")
        if self._is_inside:  # in a callback
            raise InvalidInput("this runs on the client's event loop, which its calls would block")

    @property
    def _is_inside(self) -> bool:
        """Whether the caller runs on the loop, which would wait for itself."""
        return threading.get_ident() == self._thread.ident

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
            self._end(close())

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close an iterator, which may be garbage that any thread collects, also at exit."""
        if _is_over():
            closing.close()
        elif self._is_inside:
            asyncio.run_coroutine_threadsafe(closing, self._loop)
        else:
            self.run(closing)


def _is_over() -> bool:
    """Return whether the thread of the loop has gone: by a fork, or as the interpreter exits."""
    return is_forked() or sys.is_finalizing()


_starting = threading.Lock()


def shared_loop() -> LoopThread:
    """Return the process's event loop for blocking clients, which ends with the process."""
    with _starting:  # a cache alone lets two threads start a loop each
        return _shared_loop()


@functools.cache
def _shared_loop() -> LoopThread:
    return LoopThread()
