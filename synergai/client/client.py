"""The client of a gateway: infer, stream, submit jobs, look at the fleet; NumPy in and out.

::

    async with synergai.Client("127.0.0.1:8001") as client:
        result = await client.infer("onnx_digits", {"image": image}, deadline=0.5)
        print(result["probabilities"].argmax())

        job = await client.submit("onnx_mobilenet_op11", queries=500, qos=20.0)
        async for status in job.watch():
            print(status.queries_done, status.estimated_s)

Failures are the errors of ``synergai.errors``. Calls that may be repeated without harm are, while
nobody answers; every submission carries an idempotency key, so that it is one of them.

The protobuf package ``inference`` of the Open Inference Protocol can be registered once in a
process. Its stubs are imported by the first call that needs them; a process that has imported
``tritonclient.grpc`` cannot make such calls, but can submit and watch jobs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, overload

from synergai.client.casting import cast_inputs, needs_casting
from synergai.client.channel import Connection
from synergai.client.deadlines import checked_deadline, microseconds
from synergai.client.fleet import WorkerStatus, worker_from_proto
from synergai.client.jobs import JobHandle, JobStatus, spec_to_proto, status_from_proto
from synergai.client.priority_semaphore import Gate
from synergai.client.shared_stream import Queries
from synergai.client.streaming import InferResult, JobRun, each, result_of, stream
from synergai.client.target import DEFAULT_TARGET
from synergai.domain import MAX_PRIORITY, Engine, EngineName, JobId, JobSpec, JobState
from synergai.errors import DeadlineExceeded, InvalidInput, NotFound, SynergaiError, Unavailable
from synergai.protocol.converters import engine_from_metadata
from synergai.protocol.rpc import DEFAULT_MAX_MESSAGE_BYTES
from synergai.protocol.tls import channel_credentials
from synergai.v1 import fleet_pb2, jobs_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from synergai.client.streaming import Inputs, ManyInputs
    from synergai.oip import inference_pb2

    Parameters: TypeAlias = Mapping[str, bool | int | float | str]

_CALL_TIMEOUT_S: Final = 10.0
"""For calls that do no inference: a gateway that takes longer is not well."""


class Client:
    """A connection to a gateway, to be used as an asynchronous context manager.

    Args:
        target: ``host:port`` of the gateway, or any other name that gRPC can resolve.
        max_message_bytes: largest request or answer.
        attempts: how often a call that may be repeated is tried while nobody answers.
        patience: seconds for which watching a job survives the absence of the gateway.
        in_flight: how many queries of `infer` are on their way at a time.
        tls_ca: authority (PEM) that the gateway's certificate has to be of; with it, the
            connection is encrypted.

    Raises:
        InvalidInput: there is to be no attempt, nothing may be in flight, or `tls_ca` has no
            certificates.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        attempts: int = 4,
        patience: float = 30.0,
        in_flight: int = 1024,
        tls_ca: Path | None = None,
    ) -> None:
        if attempts < 1:
            raise InvalidInput(f"a call needs at least one attempt, not {attempts}")
        if in_flight < 1:
            raise InvalidInput(f"at least one query has to be on its way, not {in_flight}")
        self.target = target
        self._max_message_bytes = max_message_bytes
        self._attempts = attempts
        self._patience = patience
        self._gate = Gate(in_flight)
        self._credentials = channel_credentials(tls_ca)
        self._in_flight = in_flight
        self._open: Connection | None = None
        self._engines: dict[str, Engine] = {}

    async def __aenter__(self) -> Self:
        # A channel belongs to the loop that runs now, so it is not made any earlier.
        self._open = connection = Connection(
            self.target, self._max_message_bytes, self._attempts, self._credentials
        )
        self._queries = Queries(connection, self._max_message_bytes, self._in_flight)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._queries.close()
        await self._connection.close()

    @property
    def _connection(self) -> Connection:
        if self._open is None:
            raise InvalidInput("use the client in an `async with Client(...) as client:` block")
        return self._open

    # --- inference ----------------------------------------------------------------------

    async def infer(
        self,
        engine: str,
        inputs: Inputs,
        *,
        deadline: float | None = None,
        priority: int = 0,
        outputs: Sequence[str] = (),
        version: str = "",
        parameters: Parameters | None = None,
    ) -> InferResult:
        """Run one query. Cancelling it stops it on its worker, too.

        Any number may be asked at once: as many as the client's `in_flight` are on their way, over
        one stream, and the most urgent of the others is next.

        Args:
            engine: name of the engine.
            inputs: a value for each of its inputs. An array has exactly the input's dtype and
                shape; lists and scalars are converted if nothing is lost.
            deadline: seconds within which the answer is wanted; later ones are not computed.
            priority: 0 to 9 (first).
            outputs: names of the outputs wanted; all of them if empty.
            version: the engine's version that it must be, if any.
            parameters: further parameters of the protocol.

        Raises:
            InvalidInput: the inputs are not what the engine takes.
            NotFound: there is no such engine.
            DeadlineExceeded: the answer was not there in time.
            Overloaded: the gateway has too much to do to meet the deadline.
            Unavailable: nobody is there to do it.
            EngineUnusable: the engine is there but broken.
        """
        request_of = self._requests(engine, outputs, version, priority, None, parameters)
        _ = self._connection.oip  # refuses here what would fail while making the request
        inputs = await self._cast(engine, inputs)
        async with self._gate.passed(priority, checked_deadline(deadline)) as left:
            return result_of(await self._queries.ask(request_of(inputs, ""), left))

    @overload
    def stream(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        deadline: float | None = ...,
        priority: int = ...,
        outputs: Sequence[str] = ...,
        version: str = ...,
        parameters: Parameters | None = ...,
        window: int = ...,
        return_exceptions: Literal[False] = ...,
    ) -> AsyncGenerator[InferResult, None]: ...

    @overload
    def stream(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        deadline: float | None = ...,
        priority: int = ...,
        outputs: Sequence[str] = ...,
        version: str = ...,
        parameters: Parameters | None = ...,
        window: int = ...,
        return_exceptions: Literal[True],
    ) -> AsyncGenerator[InferResult | SynergaiError, None]: ...

    async def stream(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        deadline: float | None = None,
        priority: int = 0,
        outputs: Sequence[str] = (),
        version: str = "",
        parameters: Parameters | None = None,
        window: int = 16,
        return_exceptions: bool = False,
    ) -> AsyncGenerator[InferResult | SynergaiError, None]:
        """Run many queries over one call, and yield their results in the order of `inputs`.

        Leave it early only with ``contextlib.aclosing`` around it, so that the call ends there.

        Args:
            engine: name of the engine.
            inputs: an iterable, asynchronous or not, of what `infer` takes.
            deadline: seconds for each query, from its arrival at the gateway.
            priority: 0 to 9 (first).
            outputs: names of the outputs wanted; all of them if empty.
            version: the engine's version that it must be, if any.
            parameters: further parameters of the protocol.
            window: how many queries may be on their way at once.
            return_exceptions: yield the failure of a query in its place, instead of raising it.

        Raises:
            SynergaiError: a query failed, see `infer`; or the call did.
        """
        if window < 1:
            raise InvalidInput(f"the window must hold at least one query, not {window}")
        timeout = checked_deadline(deadline)
        request_of = self._requests(engine, outputs, version, priority, timeout, parameters)
        answers = stream(self._connection, self._cast_each(engine, inputs), request_of, window)
        try:
            async for answer in answers:
                if isinstance(answer, SynergaiError) and not return_exceptions:
                    raise answer
                yield answer
        finally:
            await answers.aclose()

    # --- jobs ---------------------------------------------------------------------------

    async def submit(
        self,
        engine: str,
        *,
        queries: int,
        qos: float | None = None,
        priority: int = 0,
        tenant: str = "",
        idempotency_key: str = "",
    ) -> JobHandle:
        """Submit a job: `queries` queries of the engine's sample set, to be done within `qos`.

        Once this returns, the job is in the gateway's journal and will not be lost.

        Args:
            engine: name of the engine.
            queries: how many; query *i* is sample *i* modulo the size of the sample set.
            qos: seconds from acceptance; None means no deadline.
            priority: 0 to 9 (first).
            tenant: whom the work is for.
            idempotency_key: submitting again with the same key and specification returns the
                same job; a fresh key is made if none is given.

        Raises:
            InvalidInput: a number is out of its range, or a name is not valid.
            NotFound: there is no such engine.
            Conflict: the key was used for other work.
            Overloaded: the job was refused.
            Unavailable: the gateway is not there, or is going.
        """
        request = jobs_pb2.SubmitRequest(
            spec=spec_to_proto(_spec(engine, queries, qos, priority, tenant)),
            idempotency_key=idempotency_key or uuid.uuid4().hex,
        )
        method = self._connection.jobs.Submit
        job = await self._connection.call(method, request, timeout=_CALL_TIMEOUT_S)
        return self.job(job.id)

    def job(self, job_id: str) -> JobHandle:
        """The handle of a job; whether the gateway knows it shows when it is used."""
        return JobHandle(
            self._connection,
            JobId(job_id),
            call_timeout=_CALL_TIMEOUT_S,
            patience=self._patience,
        )

    async def jobs(self, states: Sequence[JobState] = (), limit: int = 100) -> list[JobStatus]:
        """Jobs, newest first.

        Args:
            states: only those in one of these; all if empty.
            limit: how many at most.

        Raises:
            SynergaiError: the gateway could not be asked.
        """
        wanted = [jobs_pb2.JobState.ValueType(state.value) for state in states]
        request = jobs_pb2.ListRequest(states=wanted, limit=limit)
        method = self._connection.jobs.List
        answer = await self._connection.call(method, request, timeout=_CALL_TIMEOUT_S)
        return [status_from_proto(job) for job in answer.jobs]

    def run(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        queries: int | None = None,
        qos: float | None = None,
        priority: int = 0,
        tenant: str = "",
    ) -> JobRun:
        """A job on these inputs, whose results come back over the same call.

        Unlike a submitted job it ends with the call.

        Args:
            engine: name of the engine.
            inputs: an iterable, asynchronous or not, of what `infer` takes.
            queries: how many there are; needed if `inputs` has no length.
            qos: seconds from acceptance; None means no deadline.
            priority: 0 to 9 (first).
            tenant: whom the work is for.

        Raises:
            InvalidInput: a number is out of its range, or a name is not valid.
        """
        if queries is None:
            if not isinstance(inputs, Sized):
                raise InvalidInput("say how many queries there are: the inputs have no length")
            queries = len(inputs)
        connection = self._connection
        _ = connection.oip  # refuses here what would fail in the middle of the call
        request_of = self._requests(engine, (), "", 0, None, None)
        spec = _spec(engine, queries, qos, priority, tenant)
        return JobRun(connection, spec, self._cast_each(engine, inputs), request_of)

    # --- the fleet ----------------------------------------------------------------------

    async def workers(self) -> list[WorkerStatus]:
        """The workers that have joined.

        Raises:
            SynergaiError: the gateway could not be asked.
        """
        answer = await self._connection.call(
            self._connection.fleet.ListWorkers,
            fleet_pb2.ListWorkersRequest(),
            timeout=_CALL_TIMEOUT_S,
        )
        return [worker_from_proto(worker) for worker in answer.workers]

    async def engine(self, name: str) -> Engine:
        """What an engine takes and gives.

        Raises:
            NotFound: there is no such engine.
            SynergaiError: the gateway could not be asked.
        """
        method = self._connection.oip.ModelMetadata
        from synergai.oip import inference_pb2

        answer = await self._connection.call(
            method,
            inference_pb2.ModelMetadataRequest(name=name),
            timeout=_CALL_TIMEOUT_S,
        )
        return engine_from_metadata(answer)

    async def load(self, engine: str, *, deadline: float | None = None) -> None:
        """Have an engine in memory on every worker that has it; back in service, if it was not.

        Args:
            engine: name of the engine.
            deadline: seconds within which the first worker is to be ready; loading goes on after
                that. None leaves it to the gateway.

        Raises:
            NotFound: there is no such engine.
            EngineUnusable: no worker can load it.
            DeadlineExceeded: no worker is ready yet.
            Unavailable: no worker is there.
        """
        method = self._connection.oip.RepositoryModelLoad
        from synergai.oip import repository_pb2

        request = repository_pb2.RepositoryModelLoadRequest(model_name=engine)
        await self._connection.call(method, request, timeout=checked_deadline(deadline))

    async def unload(self, engine: str) -> None:
        """Take an engine out of service, until it is loaded again.

        What was accepted before is done; sessions leave the workers when nothing runs on them.

        Raises:
            NotFound: there is no such engine.
            SynergaiError: the gateway could not be asked.
        """
        method = self._connection.oip.RepositoryModelUnload
        from synergai.oip import repository_pb2

        request = repository_pb2.RepositoryModelUnloadRequest(model_name=engine)
        await self._connection.call(method, request, timeout=_CALL_TIMEOUT_S)

    async def ready(self, engine: str = "") -> bool:
        """Whether the gateway, or one of its engines, can take work just now.

        Raises:
            SynergaiError: it could be reached, but not asked.
        """
        call, stub = self._connection.call, self._connection.oip
        from synergai.oip import inference_pb2

        try:
            if engine:
                model = inference_pb2.ModelReadyRequest(name=engine)
                return (await call(stub.ModelReady, model, timeout=_CALL_TIMEOUT_S)).ready
            server = inference_pb2.ServerReadyRequest()
            return (await call(stub.ServerReady, server, timeout=_CALL_TIMEOUT_S)).ready
        except (NotFound, Unavailable):
            return False

    async def _cast(self, engine: str, inputs: Inputs) -> Inputs:
        """Convert lists and scalars to what the engine takes; its metadata is asked for once."""
        if not needs_casting(inputs):
            return inputs
        if engine not in self._engines:
            self._engines[engine] = await self.engine(engine)
        return cast_inputs(inputs, self._engines[engine])

    async def _cast_each(self, engine: str, items: ManyInputs) -> AsyncGenerator[Inputs, None]:
        async for item in each(items):
            yield await self._cast(engine, item)

    def _requests(
        self,
        engine: str,
        outputs: Sequence[str],
        version: str,
        priority: int,
        timeout: float | None,
        parameters: Parameters | None,
    ) -> Callable[[Inputs, str], inference_pb2.ModelInferRequest]:
        """What makes the requests of one call, which differ in inputs and id alone."""
        given: dict[str, Any] = dict(parameters or {})
        if priority:
            given["priority"] = _protocol_priority(priority)
        if timeout is not None:
            if not timeout > 0:
                raise DeadlineExceeded(f"there is no time left: the deadline is {timeout:g} s")
            given["timeout"] = microseconds(timeout)

        def request_of(inputs: Inputs, request_id: str) -> inference_pb2.ModelInferRequest:
            from synergai.protocol import arrays

            return arrays.request_of(
                engine,
                inputs,
                outputs=outputs,
                version=version,
                request_id=request_id,
                parameters=given,
            )

        return request_of


def _spec(engine: str, queries: int, qos: float | None, priority: int, tenant: str) -> JobSpec:
    return JobSpec(
        engine=EngineName(engine),
        queries=queries,
        **({} if qos is None else {"qos": qos}),
        priority=priority,
        tenant=tenant,
    )


def _protocol_priority(priority: int) -> int:
    """Our 0 (default) to 9 (first) in the protocol's scale: 0 is the default and 1 the first."""
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"priority must be from 0 to {MAX_PRIORITY}, not {priority}")
    return MAX_PRIORITY + 1 - priority if priority else 0
