"""Jobs of a client: submitting, running and listing them."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sized
from functools import partial
from typing import TYPE_CHECKING

from synergai.client.deadlines import seconds_until, to_timestamp
from synergai.client.jobs import JobHandle
from synergai.client.requests import job_spec, output_names, request_builder, with_version
from synergai.client.streaming import JobRun
from synergai.domain import JobId, JobSpec, JobState
from synergai.errors import InvalidInput
from synergai.protocol.converters import job_spec_to_proto, job_status_from_proto
from synergai.v1 import jobs_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from synergai.client.channel import GatewayChannel
    from synergai.client.input_sources import JobInputs
    from synergai.client.requests import InputConverter
    from synergai.client.streaming import ManyInputs
    from synergai.client.uploads import UploadProgress
    from synergai.domain import Engine
    from synergai.jobs import JobStatus


class JobOperations(ABC):
    """The calls of `Client` for jobs."""

    _inputs: InputConverter
    _patience: float

    @property
    @abstractmethod
    def _channel(self) -> GatewayChannel:
        """The channel to the gateway."""

    @property
    @abstractmethod
    def max_input_bytes(self) -> int:
        """Size of the largest input of a job, serialised."""

    @abstractmethod
    async def engine(self, name: str) -> Engine:
        """Return an engine's description."""

    async def submit(
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
        on_progress: Callable[[UploadProgress], None] = lambda _: None,
    ) -> JobHandle:
        """Submit a job, of `queries` queries on the engine's sample set or over `inputs`.

        When this returns, the job is in the gateway's journal and survives a crash.

        Inputs are uploaded first. They are read while they are sent, in a thread, and never all in
        memory; an upload that is interrupted continues, for up to the client's `patience`. An input
        that cannot be read, or does not suit the engine, fails alone: its result has the error.

        Args:
            engine: name of the engine.
            queries: number of queries; query *i* is sample *i* modulo the size of the sample set.
            inputs: instead of `queries`, one of the following. A path, directory or pattern, or a
                list of them: encoded images or texts, rows of .npy, .npz and .parquet files, or
                manifests. An array, or a mapping of arrays by input name, whose rows are the
                inputs. An iterable, asynchronous or not, of paths, arrays, mappings of arrays,
                ``bytes`` (an encoded image), `Reference` (a URL that the worker reads) or
                `NamedInput`, each of which is one input.
            qos: seconds from acceptance to completion; None means no deadline.
            by: instant by which to complete, instead of `qos`; the upload counts. Without a zone,
                it is local time.
            priority: 0 (default) to 9 (most urgent).
            tenant: tenant that the job is accounted to.
            version: version of the engine; if empty, the gateway chooses one when it accepts the
                job. With a variant of it, such as ``2.int8``, all queries use this one.
            min_accuracy: lowest accuracy, 0 to 1, of the variants that queries may use.
            idempotency_key: submitting again with the same key, engine, inputs and options
                returns the same job, and continues the upload of its inputs; a random key if
                empty. Inputs that are stored already are read again, to compare them.
            outputs: names of the requested outputs, or a single name; all if empty. Only
                with `inputs`.
            max_failures: inputs that may fail before the job does; None for all. Only with
                `inputs`.
            on_progress: called with the progress of the upload, on the event loop.

        Raises:
            InvalidInput: a number is out of range, a name is not valid, or no input can be used.
            NotFound: there is no such engine.
            Conflict: the key was used with another engine, other inputs or other options.
            Overloaded: the gateway rejected the job, or has no room for its inputs.
            Unavailable: the gateway is unreachable or stopping.
            DeadlineExceeded: `by` has passed, at the latest when the inputs are stored.
            NotSupported: a library that the inputs need is missing.
        """
        if qos is not None and by is not None:
            raise InvalidInput("pass either qos or by")

        def spec(queries: int, upload_id: str = "") -> JobSpec:
            return job_spec(
                engine,
                queries,
                upload_id,
                qos=qos if by is None else seconds_until(by),
                priority=priority,
                tenant=tenant,
                version=version,
                min_accuracy=min_accuracy,
                max_failures=max_failures,
            )

        key = idempotency_key or uuid.uuid4().hex
        instant = None if by is None else to_timestamp(by)
        if inputs is None:
            if queries is None:
                raise InvalidInput("pass the number of queries, or inputs")
            if outputs:
                raise InvalidInput("outputs are for jobs over inputs only")
            request = jobs_pb2.SubmitRequest(
                spec=job_spec_to_proto(spec(queries)), idempotency_key=key, by=instant
            )
            method = self._channel.jobs.Submit
            return self.job((await self._channel.call(method, request)).id)
        if queries is not None:
            raise InvalidInput("pass either queries or inputs")
        # Imported late: other jobs need no NumPy.
        from synergai.client.submission import submit_inputs

        job_id = await submit_inputs(
            self._channel,
            await self.engine(with_version(engine, version)),
            inputs,
            spec,
            instant,
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
        """List jobs, newest first.

        Args:
            states: only jobs in one of these states; all if empty.
            limit: maximum number of jobs.

        Raises:
            SynergaiError: the call failed.
        """
        numbers = [jobs_pb2.JobState.ValueType(state.value) for state in states]
        request = jobs_pb2.ListRequest(states=numbers, limit=limit)
        method = self._channel.jobs.List
        response = await self._channel.call(method, request)
        return [job_status_from_proto(job) for job in response.jobs]

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
    ) -> JobRun:
        """Run a job on these inputs and stream its results back over the same call.

        Unlike a submitted job, it is cancelled when the call ends.

        Args:
            engine: name of the engine.
            inputs: iterable, asynchronous or not, of the `inputs` of `infer`.
            queries: number of queries; required if `inputs` has no length.
            qos: seconds from acceptance to completion; None means no deadline.
            priority: 0 (default) to 9 (most urgent).
            tenant: tenant that the job is accounted to.
            version: version of the engine; if empty, the gateway chooses one for the whole job.
                With a variant of it, such as ``2.int8``, all queries use this one.
            min_accuracy: lowest accuracy, 0 to 1, of the variants that queries may use.

        Returns:
            An asynchronous context manager that starts the job.

        Raises:
            InvalidInput: a number is out of range or a name is not valid.
        """
        if queries is None:
            if not isinstance(inputs, Sized):
                raise InvalidInput("the inputs have no length: pass their number as queries")
            queries = len(inputs)
        channel = self._channel
        _ = channel.oip  # raises NotSupported before the call starts
        engine = with_version(engine, version)
        build_request = request_builder(engine, (), 0, None, None)
        spec = job_spec(
            engine, queries, qos=qos, priority=priority, tenant=tenant, min_accuracy=min_accuracy
        )
        return JobRun(
            channel,
            spec,
            self._inputs.cast_each(engine, inputs),
            build_request,
            on_invalid=partial(self._inputs.forget, engine),
        )
