"""What serving costs a real model: MobileNet's queries per second, plain and through the gateway.

In turns, with the same number of intra-op threads: ONNX Runtime alone in a loop in a process
of its own; requests with their tensors (602 kB each) on one stream through the gateway; and a
job whose queries are samples on the worker. Medians over the rounds.

    python benchmarks/serving.py [--threads 1] [--seconds 5] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import uvloop

from engines.catalogue import build
from engines.model_directory import ModelDirectory
from synergai.oip import inference_pb2 as oip
from synergai.testing import LocalFleet
from synergai.v1 import jobs_pb2, jobs_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENGINE = "onnx_mobilenet_op11"
IN_FLIGHT = 3
PLAIN = """
import sys, time
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
image = np.random.default_rng(0).uniform(-1, 1, (1, 3, 224, 224)).astype(np.float32)
for _ in range(5):
    session.run(None, {name: image})
print("ready", flush=True)
for line in sys.stdin:
    seconds, count, began = float(line), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        session.run(None, {name: image})
        count += 1
    print(count / (time.perf_counter() - began), flush=True)
"""


class PlainLoop:
    """ONNX Runtime and nothing else, in a process that waits while the others are measured."""

    def __init__(self, model: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLAIN, str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def qps(self, seconds: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


def photograph_request() -> bytes:
    request = oip.ModelInferRequest(model_name=ENGINE)
    request.inputs.add(name="input:0", datatype="FP32", shape=[1, 3, 224, 224])
    image = np.random.default_rng(0).uniform(-1, 1, (1, 3, 224, 224)).astype(np.float32)
    request.raw_input_contents.append(image.tobytes())
    return request.SerializeToString()


async def requests_qps(target: str, seconds: float) -> float:
    """Requests per second on one stream with `IN_FLIGHT` requests under way."""
    request = photograph_request()
    free = asyncio.Semaphore(IN_FLIGHT)
    stop = time.perf_counter() + seconds

    async def requests() -> AsyncIterator[bytes]:
        while time.perf_counter() < stop:
            await free.acquire()
            yield request

    async with grpc.aio.insecure_channel(target) as channel:
        method: Any = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=oip.ModelStreamInferResponse.FromString,
        )
        call = method(requests())
        count, began = 0, time.perf_counter()
        try:
            async for answer in call:
                if answer.error_message:
                    raise SystemExit(answer.error_message)
                count += 1
                free.release()
        finally:
            call.cancel()
        return count / (time.perf_counter() - began)


def job_qps(target: str, queries: int) -> float:
    """Queries per second of a job of samples on the worker, from dispatch to completion."""
    with grpc.insecure_channel(target) as channel:
        stub = jobs_pb2_grpc.JobsStub(channel)
        spec = jobs_pb2.JobSpec(engine=ENGINE, queries=queries)
        job = stub.Submit(jobs_pb2.SubmitRequest(spec=spec), timeout=10.0)
        for seen in stub.Watch(jobs_pb2.WatchRequest(job_id=job.id), timeout=120.0):
            job = seen
        return queries / job.actual_s


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    build(ENGINE, arguments.models)
    model = ModelDirectory(arguments.models).get(ENGINE).file
    figures: dict[str, list[float]] = {"plain ONNX Runtime": [], "requests": [], "job": []}
    with tempfile.TemporaryDirectory() as folder, LocalFleet(Path(folder)) as fleet:
        fleet.start_gateway()
        fleet.start_agent(
            "worker", models=arguments.models, options=["--threads", str(arguments.threads)]
        )
        fleet.wait_for_workers(1)
        plain = PlainLoop(model, arguments.threads)
        try:
            uvloop.run(requests_qps(fleet.address, 2.0))
            for _ in range(arguments.rounds):
                figures["plain ONNX Runtime"].append(plain.qps(arguments.seconds))
                qps = uvloop.run(requests_qps(fleet.address, arguments.seconds))
                figures["requests"].append(qps)
                figures["job"].append(job_qps(fleet.address, int(qps * arguments.seconds)))
        finally:
            plain.close()
    base = statistics.median(figures["plain ONNX Runtime"])
    for name, values in figures.items():
        qps = statistics.median(values)
        print(f"{name:>18}: {qps:7.2f} queries/s, {qps / base:6.1%} of plain ONNX Runtime")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
