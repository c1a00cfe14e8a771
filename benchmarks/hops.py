"""A hop between two agents over a slow link: ``python -m benchmarks.hops [MBIT_S]``, as root.

Both agents have a network namespace of their own, whose links send at a limited rate (tbf). The
time of a hop is what a request takes more with a large tensor between its two stages than with a
small one. It is compared with what the bytes take at that rate: between the agents, and relayed by
the gateway, whose processor time per megabyte is printed as well, without that of an idle one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from benchmarks.namespaces import Namespaces
from demo.local_fleet import LocalFleet, reserved_port
from synergai import SyncClient
from synergai.names import stage_name

SMALL, LARGE = 1 << 8, 3 << 20
HOSTS = ("one", "two")
REQUESTS = 30
IDLE_S = 4.0


def main() -> None:
    """Measure both ways."""
    mbit_s = float(sys.argv[1]) if len(sys.argv) > 1 else 200.0
    bytes_s = LARGE / (mbit_s * 125e3)
    print(f"{LARGE:,} bytes at {mbit_s:g} Mbit/s: {bytes_s * 1e3:.2f} ms")
    with Namespaces(HOSTS) as network:
        for name in HOSTS:
            network.limit(name, mbit_s)
        show("between agents", *measure(network, with_port=True), bytes_s)
        show("through the gateway", *measure(network, with_port=False), bytes_s)
        network.blackhole("two", "one")
        show("relayed on demand", *measure(network, with_port=True), bytes_s)


def show(title: str, hop_s: float, gateway_s: float, bytes_s: float) -> None:
    """Print the time of a hop, and the gateway's processor time."""
    per_mb = gateway_s * 1e3 / (LARGE / 1e6)
    print(f"{title:20} {hop_s * 1e3:7.2f} ms, {hop_s / bytes_s:.2f} of the bytes", end="; ")
    print(f"gateway: {per_mb:.2f} ms of CPU per MB")


def measure(network: Namespaces, *, with_port: bool) -> tuple[float, float]:
    """Return the seconds of a hop, and the gateway's CPU seconds for it."""
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        fleet = stack.enter_context(LocalFleet(folder / "fleet"))
        hub = fleet.hub_address.replace("127.0.0.1", network.gateway)
        fleet.start_gateway(["--hub", hub, "--insecure"])
        for place, name in enumerate(HOSTS):
            for engine, size in (("small", SMALL), ("large", LARGE)):
                write_stage(folder / name, engine, place, size)
            options = ["--gateway", hub, "--threads", "1"]
            if with_port:
                options += ["--peer-port", str(stack.enter_context(reserved_port()))]
            prefix = network.prefix(name)
            fleet.start_agent(name, models=folder / name, options=options, prefix=prefix)
        fleet.wait_for_workers(len(HOSTS))
        client = stack.enter_context(SyncClient(fleet.address))
        process = psutil.Process(fleet.gateway.pid if fleet.gateway else None)
        times, cpu = {}, {}
        for engine in ("small", "large"):
            run(client, engine, 5)
            idle_s = cpu_s(process)
            time.sleep(IDLE_S)
            idle_share = (cpu_s(process) - idle_s) / IDLE_S
            begin, before_s = time.perf_counter(), cpu_s(process)
            times[engine] = run(client, engine, REQUESTS)
            idle_s = idle_share * (time.perf_counter() - begin)
            cpu[engine] = (cpu_s(process) - before_s - idle_s) / REQUESTS
        return times["large"] - times["small"], cpu["large"] - cpu["small"]


def cpu_s(process: psutil.Process) -> float:
    """Return the processor seconds of a process so far."""
    times = process.cpu_times()
    return times.user + times.system


def run(client: SyncClient, engine: str, requests: int) -> float:
    """Return the median seconds of a request."""
    times = []
    for _ in range(requests):
        begin = time.perf_counter()
        client.infer(engine, {"cut0": np.ones((1, 1), np.float32)})
        times.append(time.perf_counter() - begin)
    return median(times)


def write_stage(models: Path, engine: str, place: int, size: int) -> None:
    """Write the first stage, which makes a tensor of so many bytes, or the second, its reader."""
    folder = models / stage_name(engine, place, place + 1)
    folder.mkdir(parents=True)
    count = size // 4
    widths = (1, count) if place == 0 else (count, 1)
    tensors = [
        helper.make_tensor_value_info(f"cut{place + end}", TensorProto.FLOAT, ["n", width])
        for end, width in enumerate(widths)
    ]
    names = [each.name for each in tensors]
    if place == 0:
        extra = helper.make_tensor("repeats", TensorProto.INT64, [2], [1, count])
        node = helper.make_node("Tile", [names[0], "repeats"], names[1:])
    else:
        extra = helper.make_tensor("begin", TensorProto.INT64, [1], [0])
        ends = helper.make_tensor("end", TensorProto.INT64, [1], [1])
        axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
        node = helper.make_node("Slice", [names[0], "begin", "end", "axes"], names[1:])
    weights = [extra] if place == 0 else [extra, ends, axes]
    graph = helper.make_graph([node], "stage", tensors[:1], tensors[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    (folder / "engine.toml").write_text(
        f'backend = "onnxruntime"\nfile = "model.onnx"\nstage_of = "{"ab" * 32}"\nstage_end = 2\n'
    )


if __name__ == "__main__":
    main()
