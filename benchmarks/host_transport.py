"""Comparison of socket and shared memory between an agent and its engine hosts.

Sends queries of increasing size to an engine host with a trivial model, alternately through the
socket and through the shared-memory arena, and prints the median round-trip times. The size from
which the arena is faster is ``worker_agent.ipc.INLINE_BYTES``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from profiler.measuring.host_client import HostClient
from synergai.domain import Configuration, EngineName, Outcome, Session
from synergai.oip.inference_pb2 import ModelInferRequest

SIZES = [1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20]
ROUNDS = 200
ENGINE = EngineName("negative")


def build(models: Path) -> None:
    """Build a model whose output is as large as its input."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    (models / ENGINE).mkdir()
    onnx.save(model, models / ENGINE / "model.onnx")


def request(size: int) -> bytes:
    array = np.ones(size // 4, np.float32)
    tensor = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=array.shape)
    message = ModelInferRequest(inputs=[tensor], raw_input_contents=[array.tobytes()])
    return message.SerializeToString()


def seconds(host: HostClient, data: bytes, *, inline: bool) -> float:
    begin = time.perf_counter()
    ended, _ = host.query(data, inline_bytes=1 << 30 if inline else -1)
    if ended.outcome is not Outcome.COMPLETED:
        raise SystemExit(ended.detail)
    return time.perf_counter() - begin


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        build(models)
        with HostClient(models, Session(ENGINE, Configuration(1))) as host:
            print(f"{'bytes each way':>15} {'socket':>10} {'arena':>10} {'socket/arena':>13}")
            for size in SIZES:
                data = request(size)
                times: dict[bool, list[float]] = {True: [], False: []}
                for _ in range(ROUNDS):
                    for inline, measured in times.items():
                        measured.append(seconds(host, data, inline=inline))
                socket_s, arena_s = (statistics.median(times[inline]) for inline in (True, False))
                print(
                    f"{size:>15,} {socket_s * 1e6:>7.0f} µs {arena_s * 1e6:>7.0f} µs "
                    f"{socket_s / arena_s:>13.2f}"
                )


if __name__ == "__main__":
    main()
