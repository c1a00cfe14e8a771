"""Requests of a client: converted inputs, parameters of the protocol, job specifications."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

from synergai.domain import EngineName, validate_accuracy
from synergai.errors import Cancelled, DeadlineExceeded, InvalidInput, SynergaiError, Unavailable
from synergai.jobs import MAX_PRIORITY, JobSpec, validate_priority
from synergai.names import parse_version
from synergai.runtime.tasks import TaskBag, is_being_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from numpy.typing import ArrayLike

    from synergai.client.streaming import Inputs
    from synergai.domain import Engine
    from synergai.oip import inference_pb2

    Parameters: TypeAlias = Mapping[str, bool | int | float | str]


_NO_LIMIT_S: Final = 10 * 365 * 86400.0
"""Longer deadlines mean no deadline: clocks and the protocol's integers are bounded."""


def normalize_deadline(seconds: float | None) -> float | None:
    """Return a caller's deadline; None if it is too far away to matter."""
    if seconds is None:
        return None
    try:
        is_far, is_number = seconds > _NO_LIMIT_S, not math.isnan(seconds)
    except TypeError:
        is_far = is_number = False
    if not is_number:
        raise InvalidInput(f"a deadline must be a number of seconds, not {seconds!r}")
    if is_far:
        return None
    if seconds <= 0:
        raise DeadlineExceeded(f"a deadline must be more than 0 seconds from now, not {seconds:g}")
    return seconds


class InputConverter:
    """Converts values to the arrays that engines take, by descriptions that `fetch` returns once.

    Concurrent calls share one fetch.
    """

    def __init__(self, fetch: Callable[..., Coroutine[Any, Any, Engine]]) -> None:
        self._fetch = fetch
        self._tasks = TaskBag()
        self._fetches: dict[str, asyncio.Task[Engine]] = {}

    async def cast(
        self, engine: str, inputs: Inputs | ArrayLike, within_s: float | None = None
    ) -> Inputs:
        """Convert values to the dtypes of the engine's inputs; see `cast_inputs`.

        Arrays are passed on as they are if the engine's description cannot be read, so that the
        query itself says why.
        """
        # Imported late: submitting and watching jobs needs no NumPy.
        import numpy as np

        from synergai.client.casting import cast_inputs

        try:
            description = await self._describe(engine, within_s)
        except (DeadlineExceeded, Unavailable):
            raise
        except SynergaiError:
            if isinstance(inputs, Mapping) and all(
                isinstance(value, np.ndarray) for value in inputs.values()
            ):
                return inputs
            raise
        try:
            return cast_inputs(inputs, description)
        except InvalidInput:
            self.forget(engine)
            raise

    def forget(self, engine: str) -> None:
        """Fetch a description again next time: the engine may have other inputs now."""
        self._fetches.pop(engine, None)

    async def close(self) -> None:
        """Cancel the fetches in flight; calls that wait for them fail with `Cancelled`."""
        await self._tasks.close()

    async def _describe(self, engine: str, within_s: float | None) -> Engine:
        task = self._fetches.get(engine)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._fetches[engine] = self._tasks.start_awaited(
                self._fetch(engine, is_deadline=within_s is not None)
            )
        elif task.done():
            return task.result()
        try:
            # A call that is cancelled must not take the fetch away from the others.
            async with asyncio.timeout(within_s):
                return await asyncio.shield(task)
        except TimeoutError:
            limit_s = within_s or 0.0  # without a limit there is no timeout
            raise DeadlineExceeded(
                f"the gateway did not describe engine {engine!r} within {limit_s:.3g} s"
            ) from None
        except asyncio.CancelledError:
            if task.cancelled() and not is_being_cancelled():
                raise Cancelled("the client was closed") from None
            raise


class QueryOptions(TypedDict, total=False):
    """Options of a query.

    Attributes:
        deadline: seconds until its result is worthless; None, the default, means never.
        priority: 0 (default) to 9 (most urgent).
        outputs: names of the requested outputs, or a single name; all if empty.
        min_accuracy: lowest accuracy, 0 to 1, of the variants that may answer.
        parameters: further parameters of the protocol.
    """

    deadline: float | None
    priority: int
    outputs: Sequence[str]
    min_accuracy: float
    parameters: Parameters | None


class JobOptions(TypedDict, total=False):
    """Options of a job.

    Attributes:
        qos: seconds from acceptance to completion; None, the default, means no deadline.
        priority: 0 (default) to 9 (most urgent).
        tenant: tenant that the job is accounted to.
        min_accuracy: lowest accuracy, 0 to 1, of the variants that queries may use.
    """

    qos: float | None
    priority: int
    tenant: str
    min_accuracy: float


def request_builder(
    engine: str,
    *,
    deadline: float | None = None,
    priority: int = 0,
    outputs: Sequence[str] = (),
    min_accuracy: float = 0.0,
    parameters: Parameters | None = None,
) -> Callable[[Inputs], inference_pb2.ModelInferRequest]:
    """Return a function that makes a request from a query's inputs; see `QueryOptions`."""
    name, _, version = engine.partition("/")
    outputs = output_names(outputs)
    normalize_deadline(deadline)  # which the call has
    merged: dict[str, Any] = dict(parameters or {})
    if validate_accuracy(min_accuracy, "min_accuracy"):
        merged["synergai_min_accuracy"] = float(min_accuracy)
    if priority:
        merged["priority"] = to_protocol_priority(priority)

    def build_request(inputs: Inputs) -> inference_pb2.ModelInferRequest:
        from synergai.wire import arrays

        return arrays.build_request(
            name,
            inputs,
            outputs=outputs,
            version=version,
            parameters=merged,
        )

    return build_request


def output_names(outputs: Sequence[str]) -> Sequence[str]:
    """Return the names of the requested outputs, which may be a single name."""
    return (outputs,) if isinstance(outputs, str) else outputs


def job_spec(
    engine: str,
    queries: int,
    upload_id: str = "",
    *,
    qos: float | None = None,
    priority: int = 0,
    tenant: str = "",
    min_accuracy: float = 0.0,
    max_failures: int | None = None,
) -> JobSpec:
    """Return the specification of a job; see `JobOptions`."""
    name, _, version = engine.partition("/")
    version, variant = parse_version(version)
    return JobSpec(
        engine=EngineName(name),
        version=version,
        variant=variant,
        min_accuracy=min_accuracy,
        queries=queries,
        qos=math.inf if qos is None else qos,
        priority=priority,
        tenant=tenant,
        upload_id=upload_id,
        max_failures=max_failures,
    )


def to_protocol_priority(priority: int) -> int:
    """Convert 0 (default) to 9 (most urgent) to the protocol's 0 (default) and 1 (most urgent)."""
    validate_priority(priority)
    return MAX_PRIORITY + 1 - priority if priority else 0
