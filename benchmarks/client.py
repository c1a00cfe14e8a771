"""The client of every measurement: bytes in and out, so that it costs as little as it can."""

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


class WrongAnswer(Exception):
    """A server answered with an error, or with something else than what was asked for."""


def unwrapped(data: bytes) -> oip.ModelInferResponse:
    """The answer in a message of Triton's ``ModelStreamInfer``.

    Raises:
        WrongAnswer: it is an error.
    """
    message = oip.ModelStreamInferResponse.FromString(data)
    if message.error_message:
        raise WrongAnswer(message.error_message)
    return message.infer_response


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server's messages become answers; an answer that is None is not looked at."""

    unary: Callable[[bytes], oip.ModelInferResponse | None]
    stream: Callable[[bytes], oip.ModelInferResponse | None]


TRITON = Dialect(oip.ModelInferResponse.FromString, unwrapped)
PLAIN_ON_STREAM = Dialect(oip.ModelInferResponse.FromString, oip.ModelInferResponse.FromString)
ECHO = Dialect(lambda _: None, lambda _: None)


class Client:
    """Asks one server one workload, whatever speaks the protocol.

    Args:
        address: where the server listens.
        workload: what it is asked.
        dialect: how it answers.
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
        """Keep `in_flight` calls under way for `seconds`.

        Raises:
            WrongAnswer: one of the answers is not right, or a call failed.
        """
        latencies: list[float] = []
        answers: list[bytes] = []
        request = self._workload.request
        stop = time.perf_counter() + seconds

        async def one_after_another() -> None:
            while (began := time.perf_counter()) < stop:
                answers.append(await self._unary(request))
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        with _failures_told():
            await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
        took = time.perf_counter() - began
        for answer in answers:
            self._check(self._dialect.unary(answer))
        return _figure(latencies, took)

    async def stream(self, in_flight: int, seconds: float) -> Figure:
        """The same on one stream. All requests being alike, answers are matched by their order.

        Raises:
            WrongAnswer: one of the answers is not right, or the stream failed.
        """
        latencies: list[float] = []
        answers: list[bytes] = []
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
            with _failures_told():
                async for answer in call:
                    latencies.append(time.perf_counter() - sent[len(latencies)])
                    answers.append(answer)
                    free.release()
        finally:
            call.cancel()
            free.release()  # so that what sends the requests ends, too
        took = time.perf_counter() - began
        if len(answers) != len(sent):
            raise WrongAnswer(f"{len(answers)} answers to {len(sent)} requests on a stream")
        for answer in answers:
            self._check(self._dialect.stream(answer))
        return _figure(latencies, took)

    def _check(self, answer: oip.ModelInferResponse | None) -> None:
        if answer is None:
            return
        if answer.raw_output_contents:
            values = np.frombuffer(answer.raw_output_contents[0], np.float32)
        elif answer.outputs:
            values = np.array(answer.outputs[0].contents.fp32_contents, np.float32)
        else:
            raise WrongAnswer(f"an answer of {self._workload.engine} has no output")
        if not self._workload.right(values):
            raise WrongAnswer(f"{self._workload.engine} answered {values[:4]}…")


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    """Turn gRPC's error into ours."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise WrongAnswer(f"{error.code().name}, {error.details()}") from error


def _figure(latencies: list[float], seconds: float) -> Figure:
    if not latencies:
        raise WrongAnswer("no answer at all")
    return Figure(statistics.median(latencies) * 1e3, len(latencies) / seconds)
