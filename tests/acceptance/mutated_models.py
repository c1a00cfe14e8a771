"""Feed an agent mutated model files of every format; check that it survives.

    python tests/acceptance/mutated_models.py --count 1000

Mutants are added in batches to the model directory of a running agent. Each must become an engine
that is either served or rejected with a reason; a served mutant gets two queries, which may fail.
After each batch, the valid engine must still work, and the agent must be the same process.
"""

import argparse
import asyncio
import collections
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import grpc
import numpy as np
import onnx
from onnx import helper

import synergai
from demo.local_fleet import LocalFleet
from synergai.errors import SynergaiError
from synergai.v1 import fleet_pb2, fleet_pb2_grpc
from tests.tiny_onnx import floats, new_model
from tests.tiny_tensorflow import graph, saved_model
from tests.tiny_tflite import save_sum

VALID: Final = "valid"
BATCH_SIZE: Final = 50
MUTANT_TIMEOUT_S: Final = 90.0
"""Timeout for the inspection of a mutant, longer than the agent's own limit."""
FORMATS: Final = {
    "onnx": "model.onnx",
    "tflite": "model.tflite",
    "frozen": "model.pb",
    "saved": "saved_model.pb",
}


def originals(folder: Path) -> dict[str, bytes]:
    """Return a valid model of each format, with weights."""
    x, y = floats(["n", 8], "x", "y")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    model = new_model(nodes, [x], [y], {"w": np.ones((8, 8), np.float32)})
    onnx.checker.check_model(model)
    return {
        "onnx": model.SerializeToString(),
        "tflite": save_sum(folder / "m.tflite", width=16, matrix=True).read_bytes(),
        "frozen": graph(matrix=8),
        "saved": saved_model(graph()),
    }


def _flip(content: bytearray, generator: random.Random) -> None:
    for _ in range(generator.randint(1, 4)):
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)


def _overwrite(content: bytearray, generator: random.Random) -> None:
    start = generator.randrange(len(content))
    value = generator.choice((b"\0", b"\xff", b"\x7f", generator.randbytes(1)))
    content[start : start + 8] = value * len(content[start : start + 8])


def _truncate(content: bytearray, generator: random.Random) -> None:
    del content[generator.randrange(1, len(content)) :]


def _repeat(content: bytearray, generator: random.Random) -> None:
    start = generator.randrange(len(content))
    part = content[start : start + generator.randint(1, 200)]
    at = generator.randrange(len(content))
    content[at:at] = part * generator.randint(1, 50)


def _number(content: bytearray, generator: random.Random) -> None:
    """Replace an aligned word, possibly a length, index or dimension, by an extreme value."""
    at = generator.randrange(0, max(1, len(content) - 4), 4)
    extremes = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000, len(content))
    content[at : at + 4] = generator.choice(extremes).to_bytes(4, "little")


MUTATIONS: Final[Sequence[Callable[[bytearray, random.Random], None]]] = (
    # Weighted towards mutations that a parser may accept.
    _flip,
    _flip,
    _flip,
    _overwrite,
    _truncate,
    _repeat,
    _number,
)


class Campaign:
    """A fleet and the outcomes of the mutants."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._models = folder / "models"
        self._originals = originals(folder)
        self._generator = random.Random(seed)
        self._fleet = LocalFleet(folder / "fleet")
        (self._models / VALID).mkdir(parents=True)
        (self._models / VALID / "model.onnx").write_bytes(self._originals["onnx"])
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()

    def run(self, count: int) -> None:
        with self._fleet as fleet:
            fleet.start_gateway()
            look = ("env", "SYNERGAI_AGENT_MODELS_LOOK_S=0.2")
            options = ("--threads", "1")
            fleet.start_agent("worker", models=self._models, options=options, prefix=look)
            fleet.wait_for_workers(1)
            agent = fleet.agents["worker"]
            for first in range(0, count, BATCH_SIZE):
                begin = time.monotonic()
                self._batch(first, min(BATCH_SIZE, count - first))
                if agent.poll() is not None:
                    raise SystemExit(f"the agent died; see {fleet.log('worker')}")
                done, took = min(first + BATCH_SIZE, count), time.monotonic() - begin
                print(f"{done:5,} mutants, the last batch in {took:.0f} s", flush=True)
            log = fleet.log("worker").read_text()
            self.hosts_died = log.count("died by signal") + log.count("and was killed")

    def _batch(self, first: int, count: int) -> None:
        names = []
        for number in range(first, first + count):
            kind = list(FORMATS)[number % len(FORMATS)]
            names.append(f"{kind}-{number}")
            content = bytearray(self._originals[kind])
            self._generator.choice(MUTATIONS)(content, self._generator)
            work = self._models / f".{names[-1]}"
            work.mkdir()
            (work / FORMATS[kind]).write_bytes(bytes(content) or b"\0")
            work.rename(self._models / names[-1])
        for name, fault in self._faults(names).items():
            kind = name.partition("-")[0]
            if fault:
                self.outcomes[kind, "refused"] += 1
            else:
                self.outcomes[kind, self._query(name)] += 1
        if (end := self._query(VALID)) != "served":
            raise SystemExit(f"the valid engine is no longer served: {end}")
        for name in names:
            shutil.rmtree(self._models / name)

    def _faults(self, names: Sequence[str]) -> dict[str, str]:
        """Wait until all engines have been inspected; return their faults."""
        deadline = time.monotonic() + MUTANT_TIMEOUT_S * len(names)
        with grpc.insecure_channel(self._fleet.address) as channel:
            fleet = fleet_pb2_grpc.FleetStub(channel)
            while time.monotonic() < deadline:
                answer = fleet.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=30.0)
                known = {
                    each.name: each.fault
                    for worker in answer.workers
                    for each in worker.engines
                    if not each.pending
                }
                if all(name in known for name in names):
                    return {name: known[name] for name in names}
                time.sleep(0.2)
        missing = [name for name in names if name not in known]
        raise SystemExit(f"{', '.join(missing)} not inspected; see {self._fleet.log('worker')}")

    def _query(self, engine: str) -> str:
        async def job() -> synergai.JobStatus:
            async with synergai.Client(self._fleet.address) as client:
                submitted = await client.submit(engine, queries=2, qos=60.0)
                return await submitted.wait()

        try:
            status = asyncio.run(asyncio.wait_for(job(), 120.0))
        except SynergaiError as error:
            return f"query refused, {type(error).__name__}"
        return "served" if status.state.name == "SUCCEEDED" else "failed in service"


def main() -> None:
    """Run, print the outcomes, and fail if the agent died."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synergai-mutants-") as folder:
        campaign = Campaign(Path(folder), options.seed)
        campaign.run(options.count)
        for (kind, end), number in sorted(campaign.outcomes.items()):
            print(f"{kind:8} {end:24} {number:5,}")
        print(
            f"{options.count:,} mutated files, {campaign.hosts_died} engine hosts died, "
            "0 agent deaths"
        )


if __name__ == "__main__":
    main()
