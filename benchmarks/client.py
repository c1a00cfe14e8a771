"""Benchmark client that sends and receives serialised messages, for minimum client overhead."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from benchmarks.workloads import Workload

SERVICE = "inference.GRPCInferenceService"
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement: median latency in milliseconds, and requests per second."""

    median_ms: float
    per_second: float


class WrongResponse(Exception):
    """A server responded with an error or a wrong result."""


def unwrap(data: bytes) -> oip.ModelInferResponse:
    """Return the response in a message of Triton's ``ModelStreamInfer``.

    Raises:
        WrongResponse: the message is an error.
    """
    message = oip.ModelStreamInferResponse.FromString(data)
    if message.error_message:
        raise WrongResponse(message.error_message)
    return message.infer_response


@dataclass(frozen=True, slots=True)
class Dialect:
    """Parsers of a server's messages; a parser that returns None disables the check."""

    unary: Callable[[bytes], oip.ModelInferResponse | None]
    stream: Callable[[bytes], oip.ModelInferResponse | None]


TRITON = Dialect(oip.ModelInferResponse.FromString, unwrap)
PLAIN_ON_STREAM = Dialect(oip.ModelInferResponse.FromString, oip.ModelInferResponse.FromString)
ECHO = Dialect(lambda _: None, lambda _: None)


class Client:
    """Client that sends one workload to one server of the Open Inference Protocol.

    Args:
        address: address of the server.
        workload: request to send.
        dialect: parsers of the server's messages.
    """

    def __init__(self, address: str, workload: Workload, dialect: Dialect = TRITON) -> None:
        self._workload = workload
        self._dialect = dialect
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._unary: Any = self._channel.unary_unary(f"/{SERVICE}/ModelInfer")
        self._stream: Any = self._channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def unary(self, in_flight: int, seconds: float) -> Figure:
        """Keep `in_flight` unary calls in flight for `seconds`.

        Raises:
            WrongResponse: a call failed, or a result is wrong.
        """
        latencies: list[float] = []
        responses: list[bytes] = []
        request = self._workload.request
        stop = time.perf_counter() + seconds

        async def send_sequentially() -> None:
            while (began := time.perf_counter()) < stop:
                responses.append(await self._unary(request))
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        with _translate_grpc_errors():
            await asyncio.gather(*(send_sequentially() for _ in range(in_flight)))
        took = time.perf_counter() - began
        for response in responses:
            self._check(self._dialect.unary(response))
        return _figure(latencies, took)

    async def stream(self, in_flight: int, seconds: float) -> Figure:
        """Keep `in_flight` requests in flight on one stream for `seconds`.

        All requests are identical, so responses are matched by order.

        Raises:
            WrongResponse: the stream failed, or a result is wrong.
        """
        latencies: list[float] = []
        responses: list[bytes] = []
        sent: list[float] = []
        free = asyncio.Semaphore(in_flight)
        stop = time.perf_counter() + seconds

        async def requests() -> AsyncIterator[bytes]:
            while True:
                await free.acquire()
                now = time.perf_counter()
                if now >= stop or call.done():
                    return
                sent.append(now)
                yield self._workload.request

        call = self._stream(requests())
        began = time.perf_counter()
        try:
            with _translate_grpc_errors():
                async for response in call:
                    latencies.append(time.perf_counter() - sent[len(latencies)])
                    responses.append(response)
                    free.release()
        finally:
            call.cancel()
            free.release()  # lets the request iterator finish
        took = time.perf_counter() - began
        if len(responses) != len(sent):
            raise WrongResponse(f"{len(responses)} responses to {len(sent)} requests on a stream")
        for response in responses:
            self._check(self._dialect.stream(response))
        return _figure(latencies, took)

    def _check(self, response: oip.ModelInferResponse | None) -> None:
        if response is None:
            return
        if response.raw_output_contents:
            values = np.frombuffer(response.raw_output_contents[0], np.float32)
        elif response.outputs:
            values = np.array(response.outputs[0].contents.fp32_contents, np.float32)
        else:
            raise WrongResponse(f"a response of {self._workload.engine} has no output")
        if not self._workload.is_correct(values):
            raise WrongResponse(f"{self._workload.engine} returned {values[:4]}…")


@contextlib.contextmanager
def _translate_grpc_errors() -> Iterator[None]:
    """Translate gRPC errors to `WrongResponse`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise WrongResponse(f"{error.code().name}, {error.details()}") from error


def _figure(latencies: list[float], seconds: float) -> Figure:
    if not latencies:
        raise WrongResponse("no response")
    return Figure(statistics.median(latencies) * 1e3, len(latencies) / seconds)
