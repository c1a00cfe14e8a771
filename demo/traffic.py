"""What the demo asks of the gateway: photographs, a labelled test set, jobs, and LoadGen."""

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

from demo.plan import PAUSE_S
from synergai.errors import SynergaiError
from synergai.models.preprocess import preprocess_mobilenet
from synergai.models.samples import load_samples
from synergai.zoo.photographs import load_photographs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from demo.plan import PlannedJob
    from synergai.client.client import Client
    from synergai.client.jobs import JobStatus
    from synergai.models.directory import EngineDefinition


@dataclass(frozen=True, slots=True)
class Requests:
    """How single requests went: seconds for each that was answered, and how many were not."""

    way: str
    seconds: list[float]
    failed: int
    deadline: float

    @property
    def met(self) -> int:
        """How many were answered within the deadline."""
        return sum(s <= self.deadline for s in self.seconds)


async def send_photographs(
    client: Client, engine: str, count: int, deadline: float
) -> list[Requests]:
    """Send the photographs in turn: one at a time, and with the next one on its way already."""
    name = (await client.engine(engine)).inputs[0].name
    images = [{name: preprocess_mobilenet(photograph.jpeg)} for photograph in load_photographs()]
    inputs = [images[i % len(images)] for i in range(count)]
    await client.infer(engine, inputs[0])  # loads the engine; what follows is service as usual
    alone: list[float] = []
    failed = 0
    for image in inputs:
        began = time.perf_counter()
        try:
            await client.infer(engine, image, deadline=deadline)
        except SynergaiError:
            failed += 1
        else:
            alone.append(time.perf_counter() - began)
    answers = client.stream(engine, inputs, deadline=deadline, window=2, return_exceptions=True)
    streamed: list[float] = []
    lost = 0
    async with aclosing(answers):
        began = time.perf_counter()
        async for answer in answers:
            now = time.perf_counter()
            if isinstance(answer, SynergaiError):
                lost += 1
            else:
                streamed.append(now - began)
            began = now
    return [
        Requests("one at a time", alone, failed, deadline),
        Requests("two at a time", streamed, lost, deadline),
    ]


async def digits_accuracy(client: Client, definition: EngineDefinition) -> tuple[int, int]:
    """Send the whole labelled test set on one stream: how many were right, of how many."""
    engine = await client.engine(definition.name)
    samples = load_samples(definition, engine.inputs)
    if samples.labels is None:
        raise SynergaiError(f"the sample set of {definition.name} has no labels")
    output = engine.outputs[0].name
    answers = client.stream(definition.name, samples.inputs, window=32)
    right = 0
    async with aclosing(answers):
        labels = iter(samples.labels.tolist())
        async for answer in answers:
            right += int(np.argmax(answer[output])) == next(labels)
    return right, len(samples.labels)


async def run_jobs(client: Client, jobs: Sequence[PlannedJob]) -> list[JobStatus]:
    """Submit the jobs one after the other, and wait until all of them have ended."""
    async with asyncio.TaskGroup() as waiting:
        tasks = []
        for job in jobs:
            handle = await client.submit(job.engine, queries=job.queries, qos=job.qos)
            tasks.append(waiting.create_task(handle.wait()))
            await asyncio.sleep(PAUSE_S)
    return [task.result() for task in tasks]


def run_loadgen(
    engine: str, target: str, models: Path, output: Path, qos_ms: float
) -> dict[str, Any]:
    """Run MLPerf LoadGen Single Stream against the gateway, as its own command."""
    command = [
        *(sys.executable, "-m", "synergai", "loadgen", engine),
        *("--target", target, "--models", str(models), "--output", str(output)),
        *("--queries", "200", "--min-duration", "3", "--qos-ms", f"{qos_ms:g}", "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SynergaiError(done.stderr.strip() or "LoadGen ended without a word")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
