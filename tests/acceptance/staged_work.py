"""Jobs and requests over an engine in stages, whose answers must be those of the whole engine."""

from __future__ import annotations

import collections
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from synergai import SyncClient
from synergai.errors import SynergaiError, Unavailable
from synergai.models.directory import ModelDirectory
from synergai.testing import reserved_port
from tests.acceptance.fleets import HOST
from tests.staged_engines import ENGINE, build_stages, join_stages

FIREWALL: Final = """
import os

import uvloop

class Loop(uvloop.Loop):
    async def create_connection(self, protocol, host=None, port=None, **options):
        if str(port) == os.environ["BLOCKED_PORT"]:
            raise ConnectionRefusedError("blocked")
        return await super().create_connection(protocol, host, port, **options)

uvloop.Loop = Loop
"""
"""Keeps an agent from a port."""
ROWS: Final = 64
"""Of an input: with so many, the outputs of each stage are large enough to be held."""
INPUTS: Final = 100
REQUESTS: Final = 2
"""Clients that send requests, one after the other."""
MOST_PAUSE_S: Final = 2.0
ANSWERED: Final = "requests answered"
PATIENCE_S: Final = 60.0
"""A request has no answer if it takes longer."""
DIED_TWICE: Final = "the engine failed at this input"
"""What an input's result says if the host was killed twice while it computed it."""


class StagedWork:
    """Four agents, each with some of the stages.

    The agent `plain` has no peer port, and holds no outputs. The agent `end` cannot reach `begin`,
    whose outputs the gateway relays.
    """

    engine: Final = ENGINE
    long_queries: Final = 400
    pause_s: Final = 0.3
    victims: Final = {
        "gateway": 0.1,
        **dict.fromkeys(("begin", "both", "end", "plain"), 0.15),
        HOST: 0.3,
    }

    def __init__(self, directory: Path, ports: ExitStack) -> None:
        folders = build_stages(directory / "built")
        self.agents = {
            name: join_stages(folders, stages, directory / name)
            for name, stages in (
                ("begin", [0, 1]),
                ("both", [0, 1]),
                ("end", [1, 2]),
                ("plain", [0, 1, 2]),
            )
        }
        holders = [name for name in self.agents if name != "plain"]
        port = {name: str(ports.enter_context(reserved_port())) for name in holders}
        self.options = {name: ["--peer-port", port[name]] for name in holders}
        (directory / "sitecustomize.py").write_text(FIREWALL)
        self.prefixes = {
            "end": [
                "env",
                f"PYTHONPATH={directory}{os.pathsep}{os.getenv('PYTHONPATH', '')}",
                f"BLOCKED_PORT={port['begin']}",
            ]
        }
        rng = np.random.default_rng(0)
        self._inputs = rng.random((INPUTS, ROWS, 1, 8, 8), dtype=np.float32)
        whole = onnxruntime.InferenceSession(ModelDirectory(folders["whole"]).get(ENGINE).file)
        self._answers = [whole.run(None, {"image": each})[0] for each in self._inputs]
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._wrong: list[str] = []

    def submit(self, client: SyncClient, number: int, queries: int, key: str) -> str:
        """Submit a job; return its id."""
        inputs = [{"image": self._inputs[self._place(number, each)]} for each in range(queries)]
        return client.submit(self.engine, inputs=inputs, idempotency_key=key).id

    def find_wrong(self, client: SyncClient, job_id: str, number: int, queries: int) -> list[str]:
        """Return what is wrong with the results of a job that has ended."""
        found = []
        results = list(client.job(job_id).results())
        if [index for index, _ in results] != list(range(queries)):
            found.append(f"{job_id}: its results are not one for each of {queries} queries")
        for index, result in results:
            if result.error.startswith(DIED_TWICE):
                self._outcomes["inputs whose host died twice"] += 1
            elif result.error:
                found.append(f"{job_id}: query {index} failed: {result.error}")
            elif not self._is_right(result["probabilities"], self._place(number, index)):
                found.append(f"{job_id}: query {index} has another answer than the whole engine")
        return found

    def start_requests(self, address: str, stopped: threading.Event) -> list[threading.Thread]:
        """Send requests until the event."""
        threads = [
            threading.Thread(target=self._send, args=(address, first, stopped), daemon=True)
            for first in range(REQUESTS)
        ]
        for each in threads:
            each.start()
        return threads

    def wait_for_answer(self) -> None:
        """Wait for a while until a request is answered, so that kills meet queries on their way."""
        before, until = self._outcomes[ANSWERED], time.monotonic() + MOST_PAUSE_S
        while self._outcomes[ANSWERED] == before and time.monotonic() < until:
            time.sleep(0.01)

    def summary(self) -> str:
        """Return what became of the requests."""
        return ", ".join(f"{name}: {count:,}" for name, count in self._outcomes.most_common())

    @property
    def errors(self) -> list[str]:
        """What was wrong with the answers to requests."""
        return self._wrong

    def _send(self, address: str, first: int, stopped: threading.Event) -> None:
        number = first
        with SyncClient(address) as client:
            while not stopped.is_set():
                number = (number + REQUESTS) % INPUTS
                begun = time.monotonic()
                try:
                    image = self._inputs[number]
                    found = client.infer(self.engine, {"image": image}, deadline=PATIENCE_S)
                except Unavailable:  # it was on its way when the gateway was killed
                    self._outcomes["requests that lost the gateway"] += 1
                    time.sleep(0.05)
                except SynergaiError as error:
                    seconds = time.monotonic() - begun
                    self._wrong.append(f"a request failed after {seconds:.1f} s: {error!r}")
                else:
                    self._outcomes[ANSWERED] += 1
                    if not self._is_right(found["probabilities"], number):
                        self._wrong.append("a request has another answer than the whole engine")

    def _place(self, number: int, query: int) -> int:
        """Return which input a query of a job has."""
        return (7 * number + query) % INPUTS

    def _is_right(self, answer: np.ndarray, place: int) -> bool:
        return np.allclose(answer, self._answers[place], atol=1e-6)
