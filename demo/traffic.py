"""The demo's traffic: photographs, a labelled test set, jobs and MLPerf LoadGen."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from demo.plan import SUBMIT_INTERVAL_S
from profiler.zoo.photographs import load_photographs
from synergai.errors import SynergaiError
from synergai.models.processing import MOBILENET, prepare
from synergai.models.samples import load_samples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from demo.plan import PlannedJob
    from synergai.client.client import Client
    from synergai.jobs import JobStatus
    from synergai.models.directory import EngineDefinition


@dataclass(frozen=True, slots=True)
class RequestResults:
    """Latencies and failures of a series of single requests.

    Attributes:
        label: how they were sent.
        seconds: latency of each successful request.
        failed: number of failed requests.
        deadline: seconds.
    """

    label: str
    seconds: list[float]
    failed: int
    deadline: float

    @property
    def met(self) -> int:
        """Number of requests answered within the deadline."""
        return sum(s <= self.deadline for s in self.seconds)


async def send_photographs(
    client: Client, engine: str, count: int, deadline: float
) -> list[RequestResults]:
    """Send the photographs one at a time, then with two in flight."""
    name = (await client.engine(engine)).inputs[0].name
    images = [
        {name: prepare(MOBILENET, photograph.jpeg).transpose(2, 0, 1)[None]}
        for photograph in load_photographs()
    ]
    inputs = [images[i % len(images)] for i in range(count)]
    await client.infer(engine, inputs[0])  # warm-up, which loads the engine
    single: list[float] = []
    failed = 0
    for image in inputs:
        started = time.perf_counter()
        try:
            await client.infer(engine, image, deadline=deadline)
        except SynergaiError:
            failed += 1
        else:
            single.append(time.perf_counter() - started)
    outcomes = client.stream(engine, inputs, deadline=deadline, window=2)
    streamed: list[float] = []
    stream_failed = 0
    async with aclosing(outcomes):
        started = time.perf_counter()
        async for outcome in outcomes:
            now = time.perf_counter()
            if outcome.error is not None:
                stream_failed += 1
            else:
                streamed.append(now - started)
            started = now
    return [
        RequestResults("one at a time", single, failed, deadline),
        RequestResults("two at a time", streamed, stream_failed, deadline),
    ]


async def digits_accuracy(client: Client, definition: EngineDefinition) -> tuple[int, int]:
    """Stream the labelled test set; return the number of correct answers and of samples."""
    engine = await client.engine(definition.name)
    samples = load_samples(definition, engine.inputs)
    if samples.labels is None:
        raise SynergaiError(f"the sample set of {definition.name} has no labels")
    output = engine.outputs[0].name
    outcomes = client.stream(definition.name, samples.inputs, window=32)
    correct = 0
    async with aclosing(outcomes):
        labels = iter(samples.labels.tolist())
        async for outcome in outcomes:
            correct += int(np.argmax(outcome[output])) == next(labels)
    return correct, len(samples.labels)


async def run_jobs(client: Client, jobs: Sequence[PlannedJob]) -> list[JobStatus]:
    """Submit the jobs at intervals and wait until all have ended."""
    async with asyncio.TaskGroup() as waits:
        tasks = []
        for job in jobs:
            handle = await client.submit(job.engine, queries=job.queries, qos=job.qos)
            tasks.append(waits.create_task(handle.wait()))
            await asyncio.sleep(SUBMIT_INTERVAL_S)
    return [task.result() for task in tasks]


def run_loadgen(
    engine: str, target: str, models: Path, output: Path, qos_ms: float
) -> dict[str, Any]:
    """Run MLPerf LoadGen Single Stream against the gateway; return its JSON report."""
    command = [
        *(sys.executable, "-m", "synergai", "loadgen", engine),
        *("--target", target, "--models", str(models), "--output", str(output)),
        *("--queries", "200", "--min-duration", "3", "--qos-ms", f"{qos_ms:g}", "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SynergaiError(done.stderr.strip() or "synergai loadgen failed without a message")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
