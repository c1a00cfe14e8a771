"""Engines of different cost on one worker: latency of each, throughput and memory of all.

Run with ``python benchmarks/many_engines.py``. Each engine has a few clients that send one request
after another, first alone and then all at once.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
import psutil
import uvloop
from onnx import TensorProto, helper, numpy_helper

from benchmarks.client import Client, Figure
from benchmarks.workloads import Workload, request_of
from demo.local_fleet import LocalFleet

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 512
ROWS: Final = 32
LAYERS: Final = (0, 1, 3, 10, 16, 40, 100)
"""Matrix products of each engine, of about a quarter of a millisecond each."""


def build_engine(models: Path, name: str, layers: int) -> Workload:
    """Build an engine that multiplies with the same orthogonal matrix `layers` times."""
    matrix, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))
    weights = matrix.astype(np.float32)
    nodes = [helper.make_node("Expand", ["x", "shape"], ["h0"])]
    nodes += [
        helper.make_node("MatMul", [f"h{number}", "w"], [f"h{number + 1}"])
        for number in range(layers)
    ]
    nodes.append(helper.make_node("ReduceMax", [f"h{layers}"], ["y"], axes=[0], keepdims=1))
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        [
            numpy_helper.from_array(np.array([ROWS, WIDTH], np.int64), "shape"),
            *([numpy_helper.from_array(weights, "w")] if layers else []),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    (models / name).mkdir(parents=True)
    onnx.save(model, models / name / "model.onnx")
    row = np.random.default_rng(1).normal(size=(1, WIDTH)).astype(np.float32)
    expected = row
    for _ in range(layers):
        expected = expected @ weights
    return Workload(
        engine=name,
        request=request_of(name, "x", row),
        is_correct=lambda values: np.allclose(values, expected.ravel(), rtol=1e-3, atol=1e-3),
        build=lambda _: None,
    )


async def measure_all(clients: Sequence[Client], in_flight: int, seconds: float) -> list[Figure]:
    """Measure all clients at the same time."""
    return await asyncio.gather(*(each.unary(in_flight, seconds) for each in clients))


def _cpu_s(server: psutil.Process) -> tuple[float, float, float]:
    """Return the CPU time of the clients, the server and its engine hosts."""
    client = psutil.Process()
    return (
        _own_s(client),
        _own_s(server),
        sum(_own_s(each) for each in server.children(recursive=True)),
    )


def _own_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def compare(options: argparse.Namespace, folder: Path) -> None:
    """Measure the engines alone and all at once."""
    models = folder / "models"
    workloads = [
        build_engine(models, f"layers_{layers:02}", layers) for layers in options.layers or LAYERS
    ]
    arguments = [] if not options.threads else ["--threads", options.threads]
    with LocalFleet(folder / "fleet") as fleet:
        fleet.start_gateway(arguments, models=models)
        fleet.wait_for_workers(1)
        assert fleet.gateway is not None
        clients = [Client(fleet.address, workload) for workload in workloads]
        alone = []
        for client in clients:
            await client.unary(1, 0.3)
            alone.append(await client.unary(1, options.seconds / 4))
        await measure_all(clients, options.clients, 1.0)
        server = psutil.Process(fleet.gateway.pid)
        before = _cpu_s(server)
        together = await measure_all(clients, options.clients, options.seconds)
        used = [
            (now - then) / options.seconds for now, then in zip(_cpu_s(server), before, strict=True)
        ]
        for client in clients:
            await client.close()
        hosts = server.children(recursive=True)
        print(f"{'engine':12}{'alone':>10}{'together':>10}{'requests/s':>12}")
        for workload, one, figure in zip(workloads, alone, together, strict=True):
            print(
                f"{workload.engine:12}{one.median_ms:7.2f} ms{figure.median_ms:7.2f} ms"
                f"{figure.per_second:12.0f}"
            )
        total = sum(figure.per_second for figure in together)
        # Of a queue without order, each request waits for one of every other client.
        rounds_ms = options.clients * sum(one.median_ms for one in alone)
        in_turn = 1e3 * options.clients * len(clients) / rounds_ms
        print(f"together {total:.0f} requests/s, {total / in_turn:.2f} x of taking turns")
        print("cores: clients {:.2f}, server {:.2f}, engine hosts {:.2f}".format(*used))
        sizes = [each.memory_full_info() for each in (server, *hosts)]
        print(
            f"{len(hosts)} processes below the server; "
            f"{sum(each.rss for each in sizes) / 1e6:.0f} MB resident in all, "
            f"{sum(each.pss for each in sizes) / 1e6:.0f} MB if shared pages count once"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4, help="clients of each engine")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", default="", help="thread counts of the worker")
    parser.add_argument("--layers", type=int, nargs="*", help="matrix products of each engine")
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(compare(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()
