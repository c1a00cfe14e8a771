"""16-bit floats between stages: ``python -m benchmarks.half_tensors [MBIT_S] [TENSOR]``, as root.

The classifier of digits that `make pipeline` trains runs in two stages, on agents whose links send
at a limited rate, with tensors of 32 and of 16 bits. What that changes in the answers is measured
on its samples.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.namespaces import Namespaces
from demo.local_fleet import LocalFleet, reserved_port
from examples.training import digits_mobilenet
from examples.training.digits_mobilenet import ENGINE
from profiler.cutting.cuts import select_cuts
from profiler.cutting.stages import cut_engine, measure_halving, split_engine
from profiler.engines.check import run_samples
from synergai import SyncClient

if TYPE_CHECKING:
    from profiler.cutting.stages import CutEngine

HOSTS = ("one", "two")
REQUESTS = 30
QUERIES = 60
TENSOR = "Conv2d_5_pointwise/Relu6"


def main() -> None:
    """Measure both kinds of tensors."""
    mbit_s = float(sys.argv[1]) if len(sys.argv) > 1 else 100.0
    tensor = sys.argv[2] if len(sys.argv) > 2 else TENSOR
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary:
        models = Path(temporary) / "models"
        digits_mobilenet.build(models)
        engine = cut_engine(models, ENGINE)
        [cut] = select_cuts(engine.definition.name, engine.cuts, [tensor])
        bytes_s = cut.size_bytes / (mbit_s * 125e3)
        print(f"{tensor}: {cut.size_bytes:,} bytes, {bytes_s * 1e3:.1f} ms at {mbit_s:g} Mbit/s")
        loss = measure_halving(engine, models, [tensor], run_samples)
        if loss is not None:
            print(
                f"16 bits change the answers by {loss.largest:.2g} at most, and the likeliest "
                f"class of {loss.changed} of {loss.samples} samples"
            )
        with Namespaces(HOSTS, subnet=2) as network:
            for name in HOSTS:
                network.limit(name, mbit_s)
            for half in (False, True):
                folder = Path(temporary) / ("half" if half else "full")
                request_s, rate = measure(network, engine, folder, tensor, half=half)
                bits = 16 if half else 32
                print(f"{bits} bits: {request_s * 1e3:6.1f} ms a request, {rate:6.2f}/s in a job")


def measure(
    network: Namespaces, engine: CutEngine, folder: Path, tensor: str, *, half: bool
) -> tuple[float, float]:
    """Return the median seconds of a request, and the queries per second of a job."""
    models = engine.definition.file.parents[1]
    stages = split_engine(engine, models, [tensor], lambda *_: None, half=half, replace=True)
    with ExitStack() as stack:
        fleet = stack.enter_context(LocalFleet(folder / "fleet"))
        hub = fleet.hub_address.replace("127.0.0.1", network.gateway)
        fleet.start_gateway(["--hub", hub, "--insecure"])
        for name, stage in zip(HOSTS, stages, strict=True):
            shutil.copytree(models / stage.name, folder / name / stage.name)
            port = stack.enter_context(reserved_port())
            options = ["--gateway", hub, "--threads", "1", "--peer-port", str(port)]
            prefix = network.prefix(name)
            fleet.start_agent(name, models=folder / name, options=options, prefix=prefix)
        fleet.wait_for_workers(len(HOSTS))
        client = stack.enter_context(SyncClient(fleet.address))
        _, (images, _) = digits_mobilenet.load()
        times = []
        for image in images[: 5 + REQUESTS]:
            begin = time.perf_counter()
            client.infer(ENGINE, {"image": image[np.newaxis]})
            times.append(time.perf_counter() - begin)
        status = client.submit(ENGINE, queries=QUERIES).wait()
        status.raise_unless_succeeded()
        return median(times[5:]), QUERIES / (status.actual_s or 1.0)


if __name__ == "__main__":
    main()
