"""Client of a gateway: inference with NumPy arrays, jobs and the fleet.

::

    async with synergai.Client("127.0.0.1:8001") as client:
        result = await client.infer("onnx_digits", {"image": image}, deadline=0.5)
        print(result["probabilities"].argmax())

        job = await client.submit("onnx_mobilenet_op11", queries=500, qos=20.0)
        async for status in job.watch():
            print(status.queries_done, status.estimated_s)

Calls fail with the errors of ``synergai.errors``. Idempotent calls are retried while the gateway
is unavailable; submissions are idempotent because each carries an idempotency key.

A process can register the protobuf package ``inference`` of the Open Inference Protocol only once.
Its stubs are imported by the first call that needs them: a process that has imported
``tritonclient.grpc`` cannot make such calls, but can submit and watch jobs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from synergai.client.channel import GatewayChannel
from synergai.client.deadlines import Budget, normalize_deadline
from synergai.client.descriptions import EngineDescriptions
from synergai.client.engine_operations import EngineOperations
from synergai.client.fleet import WorkerStatus, worker_from_proto
from synergai.client.job_operations import JobOperations
from synergai.client.priority_semaphore import PrioritySemaphore
from synergai.client.requests import InputConverter, request_builder, with_version
from synergai.client.shared_stream import SharedStream
from synergai.client.streaming import (
    InferResult,
    parse_response,
    stream_queries,
)
from synergai.client.target import DEFAULT_TARGET
from synergai.domain import (
    Engine,
    EngineName,
)
from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.protocol.bearer_token import token_metadata
from synergai.protocol.converters import (
    engine_from_metadata,
    profile_entry_from_proto,
)
from synergai.protocol.limits import DEFAULT_MAX_MESSAGE_BYTES, ENVELOPE_BYTES
from synergai.protocol.tls import Identity, channel_credentials
from synergai.runtime.addresses import refuse_url
from synergai.v1 import fleet_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path
    from types import TracebackType

    from synergai.client.requests import Parameters
    from synergai.client.streaming import Inputs, ManyInputs
    from synergai.oip import inference_pb2
    from synergai.profiles.dictionary import ProfileEntry

_INSPECTION_S: Final = 90.0
"""Time within which an engine is inspected if it is the only new one, in seconds."""


class Client(JobOperations, EngineOperations):
    """Asynchronous client of a gateway; use it as an asynchronous context manager.

    Args:
        target: ``host:port`` of the gateway, or any other name that gRPC can resolve.
        max_message_bytes: largest request or response.
        attempts: maximum number of attempts of an idempotent call while the gateway is
            unavailable; 1 disables retries.
        patience: seconds for which watching a job outlasts an unavailable gateway.
        in_flight: maximum number of queries of `infer` in flight; others wait in the client.
        tls_ca: certificate authority (PEM) of the gateway's certificate; enables TLS.
        tls_cert: certificate (PEM) of the client, if the gateway requires one.
        tls_key: private key (PEM) of `tls_cert`.
        token: bearer token, if the gateway has an access table.
        insecure: send the token without TLS to other machines as well.

    Raises:
        InvalidInput: `target` is a URL, `attempts` or `in_flight` is less than 1, a file has no
            certificates or key, or the token would be sent without encryption.
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
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        token: str = "",
        insecure: bool = False,
    ) -> None:
        if attempts < 1:
            raise InvalidInput(f"attempts must be at least 1, not {attempts}")
        if in_flight < 1:
            raise InvalidInput(f"in_flight must be at least 1, not {in_flight}")
        self.target = refuse_url(target)
        self._max_message_bytes = max_message_bytes
        self._attempts = attempts
        self._patience = patience
        self._slots = PrioritySemaphore(in_flight)
        self._credentials = channel_credentials(tls_ca, Identity.read(tls_cert, tls_key))
        self._metadata = token_metadata(
            token, target, encrypted=tls_ca is not None, insecure=insecure
        )
        self._in_flight = in_flight
        self._opened: GatewayChannel | None = None
        self._descriptions = EngineDescriptions(partial(self._describe, within_s=None))
        self._inputs = InputConverter(self._descriptions)

    async def __aenter__(self) -> Self:
        # A channel is bound to the running event loop, so it is opened here.
        self._opened = channel = GatewayChannel(
            self.target,
            self._max_message_bytes,
            self._attempts,
            self._credentials,
            self._metadata,
        )
        self._shared_stream = SharedStream(channel, self._max_message_bytes, self._in_flight)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._shared_stream.close()
        await self._channel.close()
        await self._descriptions.close()

    @property
    def _channel(self) -> GatewayChannel:
        if self._opened is None:
            raise InvalidInput("use the client in an `async with Client(...) as client:` block")
        return self._opened

    @property
    def max_input_bytes(self) -> int:
        """Size of the largest input of a job, serialised."""
        return self._max_message_bytes - ENVELOPE_BYTES

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
        min_accuracy: float = 0.0,
        parameters: Parameters | None = None,
    ) -> InferResult:
        """Run one query; cancelling the call also stops it on its worker.

        Any number of calls may run concurrently: up to the client's `in_flight` share one stream,
        and the others wait in order of priority and deadline.

        Args:
            engine: name of the engine.
            inputs: a value per input of the engine. Arrays of another dtype, lists and scalars are
                converted if nothing is lost but the rounding of floating-point numbers, and gain
                the leading dimension of 1 if they lack it.
            deadline: seconds until the result is worthless; the query is then cancelled.
            priority: 0 (default) to 9 (most urgent).
            outputs: names of the requested outputs, or a single name; all if empty.
            version: version of the engine, or a variant of it, such as ``2.int8``; if empty, and
                without ``NAME/N``, the gateway's choice.
            min_accuracy: lowest accuracy, 0 to 1, of the variants that may answer.
            parameters: further parameters of the protocol.

        Returns:
            The engine's outputs as arrays.

        Raises:
            InvalidInput: the inputs do not match the engine's.
            NotFound: there is no such engine.
            DeadlineExceeded: there was no response before the deadline.
            Overloaded: the gateway shed the query because it could not meet the deadline.
            Unavailable: the gateway is unreachable, or no worker can run the query.
            EngineUnusable: the engine is broken.
        """
        engine = with_version(engine, version)
        build_request = request_builder(engine, outputs, priority, None, parameters, min_accuracy)
        _ = self._channel.oip  # raises NotSupported before the request is built
        timeout = normalize_deadline(deadline)
        budget = Budget(timeout)
        values = await self._inputs.cast(engine, inputs, timeout)
        async with self._slots.acquire(priority, budget.left()) as remaining:
            try:
                response = await self._shared_stream.infer(build_request(values), remaining)
            except InvalidInput:
                # The engine may have been replaced by one with other inputs.
                changed = await self._inputs.cast_again(engine, inputs, budget.left())
                if changed is None:
                    raise
                response = await self._shared_stream.infer(build_request(changed), budget.left())
            return parse_response(response)

    async def stream(
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
    ) -> AsyncGenerator[InferResult, None]:
        """Run many queries over one call and yield their results in the order of `inputs`.

        A query that fails has its error in its own result, and the others are answered:
        ``result["name"]`` raises the error, and ``result.error`` is it.

        Wrap it in ``contextlib.aclosing`` to end the call when leaving the loop early.

        Args:
            engine: name of the engine.
            inputs: iterable, asynchronous or not, of the `inputs` of `infer`.
            deadline: seconds for each query, from its arrival at the gateway.
            priority: 0 (default) to 9 (most urgent).
            outputs: names of the requested outputs, or a single name; all if empty.
            version: version of the engine, or a variant of it, such as ``2.int8``; if empty, and
                without ``NAME/N``, the gateway's choice.
            min_accuracy: lowest accuracy, 0 to 1, of the variants that may answer.
            parameters: further parameters of the protocol.
            window: maximum number of queries in flight.

        Yields:
            A query's outputs, or its error, see `infer`.

        Raises:
            SynergaiError: the call as a whole failed.
        """
        if window < 1:
            raise InvalidInput(f"window must be at least 1, not {window}")
        timeout = normalize_deadline(deadline)
        engine = with_version(engine, version)
        build_request = request_builder(
            engine, outputs, priority, timeout, parameters, min_accuracy
        )

        async def make_request(item: Inputs) -> inference_pb2.ModelInferRequest:
            return build_request(await self._inputs.cast(engine, item))

        outcomes = stream_queries(self._channel, inputs, make_request, window)
        try:
            async for outcome in outcomes:
                if isinstance(outcome.error, InvalidInput):
                    self._inputs.forget(engine)
                yield outcome
        finally:
            await outcomes.aclose()

    # --- the fleet ----------------------------------------------------------------------

    async def dictionary(self) -> list[ProfileEntry]:
        """List the entries of the gateway's configuration dictionary.

        Raises:
            SynergaiError: the call failed.
        """
        method = self._channel.fleet.GetDictionary
        response = await self._channel.call(method, fleet_pb2.GetDictionaryRequest())
        return [profile_entry_from_proto(entry) for entry in response.entries]

    async def workers(self) -> list[WorkerStatus]:
        """List the registered workers.

        Raises:
            SynergaiError: the call failed.
        """
        method = self._channel.fleet.ListWorkers
        response = await self._channel.call(method, fleet_pb2.ListWorkersRequest())
        return [worker_from_proto(worker) for worker in response.workers]

    async def engine(self, name: str, *, deadline: float | None = None) -> Engine:
        """Return an engine's description: its inputs, outputs and version.

        This waits while the engine is being inspected.

        Args:
            name: name of the engine, or ``NAME/N`` for version N of it.
            deadline: seconds to wait; by default, long enough for one inspection.

        Raises:
            NotFound: there is no such engine.
            DeadlineExceeded: there was no description before the deadline.
            SynergaiError: the call failed.
        """
        timeout = normalize_deadline(deadline)
        return await self._describe(name, _INSPECTION_S if timeout is None else timeout)

    async def _describe(self, name: str, within_s: float | None) -> Engine:
        """Return the description of an engine; the gateway waits until it has been inspected."""
        method = self._channel.oip.ModelMetadata
        from synergai.oip import inference_pb2

        engine, _, version = name.partition("/")
        request = inference_pb2.ModelMetadataRequest(name=engine, version=version)
        response = await self._channel.call(method, request, timeout=within_s)
        described = engine_from_metadata(response)
        return replace(described, name=EngineName(name)) if version else described

    async def ready(self, engine: str = "") -> bool:
        """Return whether the gateway, or one of its engines, is ready.

        Args:
            engine: name of the engine, or ``NAME/N`` for version N of it; empty for the gateway
                itself.

        Raises:
            SynergaiError: the gateway is reachable, but the call failed.
        """
        call, stub = self._channel.call, self._channel.oip
        from synergai.oip import inference_pb2

        try:
            if engine:
                name, _, version = engine.partition("/")
                model = inference_pb2.ModelReadyRequest(name=name, version=version)
                return (await call(stub.ModelReady, model)).ready
            server = inference_pb2.ServerReadyRequest()
            return (await call(stub.ServerReady, server)).ready
        except (NotFound, Unavailable):
            return False
