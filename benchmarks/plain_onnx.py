"""Baseline: a plain loop around ONNX Runtime.

For each line of standard input with a number of seconds, it runs the model for that long and
prints the median latency in milliseconds and the rows per second, in batches of ROWS.

    python benchmarks/plain_onnx.py MODEL THREADS [ROWS]
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import onnxruntime


def main(model: str, threads: int, rows: int) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    tensor = session.get_inputs()[0]
    shape = [size if isinstance(size, int) else rows for size in tensor.shape]
    values = {tensor.name: np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)}
    for line in sys.stdin:
        latencies = []
        now = began = time.perf_counter()
        while now - began < float(line):
            session.run(None, values)
            before, now = now, time.perf_counter()
            latencies.append(now - before)
        per_second = rows * len(latencies) / (now - began)
        print(statistics.median(latencies) * 1e3, per_second, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
