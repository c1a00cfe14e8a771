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

import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Unpack

from synergai.client.fleet_operations import FleetOperations
from synergai.client.jobs import JobHandle
from synergai.client.requests import (
    JobOptions,
    QueryOptions,
    job_spec,
    normalize_deadline,
    output_names,
    request_builder,
)
from synergai.client.streaming import InferResult, answer_all, iterate, parse_response
from synergai.domain import JobId
from synergai.errors import InvalidInput, SynergaiError
from synergai.v1 import jobs_pb2
from synergai.wire.converters import job_spec_to_proto, job_status_from_proto

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from synergai.client.input_sources import JobInputs
    from synergai.client.streaming import Inputs, ManyInputs
    from synergai.client.uploads import UploadProgress
    from synergai.jobs import JobSpec, JobState, JobStatus


class Client(FleetOperations):
    """Asynchronous client of a gateway.

    It opens at its first call, or by `connect`, in the event loop that it is used in.
    It may be used as an asynchronous context manager, which closes it; several times, if it is
    used in several loops, one after the other.

    The name of an engine may be followed by a version, and that by a variant, as in
    ``resnet50/2.int8``; the gateway chooses them otherwise, for a job when it accepts it.

    Calls raise `NotFound` if there is no such engine, version or job, `InvalidInput` for other
    arguments that are not valid, `Unavailable` without the gateway, and the errors named with them.

    Args:
        target: ``host:port`` of the gateway, or any other name that gRPC can resolve. Several,
            separated by commas, share a database: calls go to the one that leads.
        max_message_bytes: largest request or response.
        attempts: maximum number of attempts of an idempotent call without a deadline while the
            gateway is unavailable; 1 disables all retries.
        patience: seconds for which watching a job and, within their deadlines, queries outlast an
            unavailable gateway that has answered before. With several gateways, other idempotent
            calls outlast it, too.
        tls_ca: certificate authority (PEM) of the gateway's certificate; enables TLS.
        tls_cert: certificate (PEM) of the client, if the gateway requires one.
        tls_key: private key (PEM) of `tls_cert`.
        token: bearer token, if the gateway has an access table.
        insecure: send the token without TLS to other machines as well.

    Raises:
        InvalidInput: `target` is a URL, `attempts` is less than 1, a file has no
            certificates or key, or the token would be sent without encryption.
    """

    _iterate = staticmethod(iterate)

    # --- inference ----------------------------------------------------------------------

    async def infer(
        self, engine: str, inputs: Inputs, **options: Unpack[QueryOptions]
    ) -> InferResult:
        """Run one query; cancelling the call also stops it on its worker.

        Any number of calls may run concurrently; those that the gateway's connections have no room
        for wait here.

        Args:
            inputs: a value per input of the engine. Arrays of another dtype, lists and scalars are
                converted if nothing is lost but the rounding of floating-point numbers, and gain
                the leading dimension of 1 if they lack it.
            options: `deadline`, `priority`, `outputs`, `min_accuracy`, `parameters`; see
                `QueryOptions`. The query is cancelled at its deadline.

        Raises:
            InvalidInput: the inputs do not match the engine's.
            NotFound: there is no such engine.
            DeadlineExceeded: there was no response before the deadline.
            Overloaded: the gateway shed the query because it could not meet the deadline.
            Unavailable: the gateway is unreachable, or no worker can run the query.
            EngineUnusable: the engine is broken.
        """
        timeout = normalize_deadline(options.get("deadline"))
        began = time.monotonic()
        build_request = request_builder(engine, **options)
        method = self._channel.oip.ModelInfer  # raises NotSupported before the request is built
        request = build_request(await self._inputs.cast(engine, inputs, timeout))
        if timeout is not None:
            timeout -= time.monotonic() - began
        try:
            response = await self._channel.call(
                method, request, timeout=timeout, is_deadline=timeout is not None
            )
        except InvalidInput:
            self._inputs.forget(engine)
            raise
        return parse_response(response)

    async def stream(
        self,
        engine: str,
        inputs: ManyInputs,
        *,
        window: int = 16,
        **options: Unpack[QueryOptions],
    ) -> AsyncGenerator[InferResult, None]:
        """Run many queries concurrently and yield their results in the order of `inputs`.

        A query that fails has its error in its own result, and the others are answered:
        ``result["name"]`` raises the error, and ``result.error`` is it. What `inputs` itself raises
        is raised here, after the results of the inputs before it.

        To end the queries when leaving the loop early, wrap it in ``contextlib.aclosing``, or that
        of a `SyncClient` in ``contextlib.closing``.

        Args:
            inputs: iterable, asynchronous or not, of the `inputs` of `infer`.
            window: maximum number of queries in flight.
            options: of each query, as for `infer`.
        """
        if window < 1:
            raise InvalidInput(f"window must be at least 1, not {window}")
        channel = self._channel
        channel.ensure_open()
        request_builder(engine, **options)  # raises for options that are not valid
        _ = channel.oip  # raises NotSupported

        async def answer(values: Inputs) -> InferResult:
            try:
                return await self.infer(engine, values, **options)
            except SynergaiError as error:
                if channel.closed:
                    raise
                return InferResult({}, error=error)

        async with aclosing(answer_all(self._iterate(inputs), answer, window)) as results:
            async for result in results:
                yield result

    # --- jobs ---------------------------------------------------------------------------

    async def submit(
        self,
        engine: str,
        *,
        queries: int | None = None,
        inputs: JobInputs | None = None,
        idempotency_key: str = "",
        outputs: Sequence[str] = (),
        max_failures: int | None = None,
        on_progress: Callable[[UploadProgress], None] = lambda _: None,
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Submit a job, of `queries` queries on the engine's sample set or over `inputs`.

        When this returns, the job is in the gateway's journal and survives a crash.

        Inputs are uploaded first. They are read while they are sent, in a thread, and never all in
        memory; an upload that is interrupted continues, for up to the client's `patience`. An input
        that cannot be read, or does not suit the engine, fails alone: its result has the error.
        What an iterable raises is raised here, and no job is submitted.

        Args:
            inputs: instead of `queries`, one of the following. A path, directory or pattern, or a
                list of them: encoded images or texts, or rows of .npy and .parquet
                files. An array, or a mapping of arrays by input name, whose rows are the
                inputs. An iterable of arrays, mappings of arrays, ``bytes`` (an encoded image)
                or `NamedInput`, each one input.
            idempotency_key: submitting again with the same key, engine, inputs and options
                returns the same job, and continues the upload of its inputs; a random key if
                empty. Inputs that are stored already are read again, to compare them.
            outputs: names of the requested outputs, or a single name; all if empty. Only
                with `inputs`.
            max_failures: inputs that may fail before the job does; None for all. Only with
                `inputs`.
            on_progress: called with the progress of the upload, on the event loop.
            options: `qos`, `priority`, `tenant`, `min_accuracy`; see `JobOptions`.

        Raises:
            InvalidInput: a number is out of range, a name is not valid, or no input can be used.
            NotFound: there is no such engine.
            Conflict: the key was used with another engine, other inputs or other options.
            Overloaded: the gateway rejected the job, or has no room for its inputs.
            Unavailable: the gateway is unreachable or stopping.
            NotSupported: a library that the inputs need is missing.
        """

        def spec(queries: int, upload_id: str = "") -> JobSpec:
            return job_spec(engine, queries, upload_id, max_failures=max_failures, **options)

        key = idempotency_key or uuid.uuid4().hex
        if inputs is None:
            if queries is None:
                raise InvalidInput("pass the number of queries, or inputs")
            if outputs:
                raise InvalidInput("outputs are for jobs over inputs only")
            request = jobs_pb2.SubmitRequest(
                spec=job_spec_to_proto(spec(queries)), idempotency_key=key
            )
            method = self._channel.jobs.Submit
            return self.job((await self._channel.call(method, request)).id)
        if queries is not None:
            raise InvalidInput("pass either queries or inputs")
        # Imported late: other jobs need no NumPy.

        from synergai.client.uploads import submit_inputs  # imports numpy

        job_id = await submit_inputs(
            self._channel,
            await self.engine(engine),
            inputs,
            spec,
            outputs=output_names(outputs),
            idempotency_key=key,
            max_input_bytes=self.max_input_bytes,
            patience=self._patience,
            on_progress=on_progress,
        )
        return self.job(job_id)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of a job, without asking the gateway whether it exists."""
        return JobHandle(self._channel, JobId(job_id), patience=self._patience)

    async def jobs(self, states: Sequence[JobState] = (), limit: int = 100) -> list[JobStatus]:
        """List jobs, newest first."""
        numbers = [jobs_pb2.JobState.ValueType(state.value) for state in states]
        request = jobs_pb2.ListRequest(states=numbers, limit=limit)
        method = self._channel.jobs.List
        response = await self._channel.call(method, request)
        return [job_status_from_proto(job) for job in response.jobs]
