"""Results of a job over its own inputs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from synergai.data.results import JobResult
from synergai.errors import Unavailable
from synergai.protocol.arrays import read_outputs
from synergai.runtime.backoff import Backoff
from synergai.v1 import jobs_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from synergai.client.channel import GatewayChannel


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """Consecutive results, and the cursor where the results continue after them."""

    results: list[JobResult]
    cursor: int


async def read_batches(
    channel: GatewayChannel, job_id: str, *, cursor: int, follow: bool, patience: float
) -> AsyncGenerator[ResultBatch, None]:
    """Yield the results of a job from `cursor` on."""
    delays = Backoff().delays()
    unavailable_since: float | None = None
    while True:
        channel.ensure_open()
        called_at = time.monotonic()
        request = jobs_pb2.ResultsRequest(job_id=job_id, cursor=cursor, follow=follow)
        call = channel.jobs.Results(request)
        try:
            async for message in call:
                cursor = message.cursor
                yield ResultBatch([_parse(each) for each in message.results], cursor)
                delays, unavailable_since = Backoff().delays(), None
        except grpc.aio.AioRpcError as failure:
            error = channel.to_error(failure)
            if not isinstance(error, Unavailable):
                raise error from None
        except asyncio.CancelledError as cancellation:
            raise channel.cancellation_cause(cancellation) from None
        else:
            return
        finally:
            call.cancel()
        now = time.monotonic()
        # No message need arrive for long; a call that has lasted was connected.
        if unavailable_since is None or now - called_at > patience:
            unavailable_since = now
        delay = next(delays)
        if now + delay - unavailable_since > patience:
            raise error
        await asyncio.sleep(delay)


def _parse(message: jobs_pb2.JobResult) -> JobResult:
    from synergai.oip import inference_pb2

    if message.WhichOneof("outcome") != "response":
        return JobResult(message.index, message.name, {}, message.error or "it has no result")
    response = inference_pb2.ModelInferResponse.FromString(message.response)
    return JobResult(message.index, message.name, read_outputs(response))
