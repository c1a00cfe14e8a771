"""What clients run while processes are killed: jobs over samples, images and staged engines."""

import collections
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from demo.local_fleet import reserved_port
from profiler.zoo.recipes import build
from synergai import JobResult, NamedInput, SyncClient
from synergai.errors import SynergaiError, Unavailable
from synergai.models.directory import ModelDirectory
from tests.acceptance.fleets import HOST, KilledFleet
from tests.staged_engines import ENGINE, build_stages, join_stages
from tests.tiny_images import COLOURS, picture, save_image_engines

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
WIDTH: Final = 900
"""Pixels of an image."""
REQUESTS: Final = 2
"""Clients that send requests, one after the other."""
MOST_PAUSE_S: Final = 2.0
ANSWERED: Final = "requests answered"
PATIENCE_S: Final = 60.0
"""A request has no answer if it takes longer."""
READ_ALONG: Final = 100
"""Queries from which on the results of a job are read while it runs."""
READERS: Final = 8
FOLLOWED_S: Final = 300.0
"""Time for which a reader of results tries to reach the gateway again."""
DIED_TWICE: Final = "the engine failed at this input"
"""What an input's result says if the host was killed twice while it computed it."""


class WholeWork:
    """Jobs over samples of an engine that two agents have whole.

    Attributes:
        long_queries: most queries of a job.
        pause_s: mean time between a restart and the next kill.
        victims: what is killed, and how often.
        agents: their model directories.
        options: their further options.
        prefixes: commands that run the agents' commands.
        errors: what was wrong with answers to requests.
    """

    engine: str = "onnx_identity"
    long_queries = 4000
    pause_s = 0.8
    victims: Mapping[str, float] = {"gateway": 0.35, "left": 0.25, "right": 0.25, HOST: 0.15}
    options: Mapping[str, Sequence[str]] = {}
    prefixes: Mapping[str, Sequence[str]] = {}

    def __init__(self, directory: Path, _ports: ExitStack) -> None:
        build(self.engine, directory)
        self.agents = dict.fromkeys(("left", "right"), directory)
        self.errors: list[str] = []

    def submit(self, client: SyncClient, _number: int, queries: int, key: str) -> str:
        return client.submit(self.engine, queries=queries, idempotency_key=key).id

    def find_wrong(self, _client: SyncClient, _job: str, _number: int, _queries: int) -> list[str]:
        """Return what is wrong with the results of a job that has ended."""
        return []

    def start_requests(self, _address: str, _stopped: threading.Event) -> list[threading.Thread]:
        """Send requests until the event; no process has been killed yet."""
        return []

    def prepare_kill(self, _fleet: KilledFleet, _victim: str, _rng: random.Random) -> None:
        """Wait until a process is to be killed."""

    def end_changes(self, fleet: KilledFleet) -> None:
        """Bring back what was taken away, so that all jobs can end."""

    def find_disorder(self, _fleet: KilledFleet) -> list[str]:
        """Return what is not as it should be once all jobs have ended."""
        return []

    def summary(self) -> str:
        return "no requests"


class DataWork(WholeWork):
    """Jobs over inputs of the client, whose results are compared."""

    def __init__(self) -> None:
        self.errors = []
        self._outcomes: collections.Counter[str] = collections.Counter()

    def summary(self) -> str:
        return ", ".join(f"{name}: {count:,}" for name, count in self._outcomes.most_common())

    def find_wrong(self, client: SyncClient, job_id: str, number: int, queries: int) -> list[str]:
        found = []
        version = client.job(job_id).wait().spec.version  # which outlasts a connection
        results = self._results(client, job_id)
        if sorted(index for index, _ in results) != list(range(queries)):
            found.append(f"{job_id}: its results are not one for each of {queries} queries")
        for index, result in results:
            place = self._place(number, index)
            if result.error.startswith(DIED_TWICE):
                self._outcomes["inputs whose host died twice"] += 1
            elif result.error:
                found.append(f"{job_id}: query {index} failed: {result.error}")
            elif not self._is_right(result.outputs, place, version):
                found.append(f"{job_id}: query {index} of version {version} has a wrong answer")
            if result.name != self._name(number, index):
                found.append(f"{job_id}: query {index} is called {result.name!r}")
        return found

    def _results(self, client: SyncClient, job_id: str) -> Sequence[tuple[int, JobResult]]:
        return list(client.job(job_id).results())

    def _place(self, number: int, query: int) -> int:
        """Return which input a query of a job has."""
        return (7 * number + query) % INPUTS

    def _name(self, _number: int, query: int) -> str:
        """Return what the input of a query is called, by its position if by nothing else."""
        return str(query)

    def _is_right(self, outputs: Mapping[str, np.ndarray], place: int, version: str) -> bool:
        """Return whether these are the outputs of a version for one of the inputs."""
        raise NotImplementedError


class ImageWork(DataWork):
    """Jobs over images on three agents; images take long to decode, so that kills meet them.

    Results of long jobs are read while they run, and processes are killed.
    """

    engine = "colours"
    long_queries = 2000
    pause_s = 1.5
    victims: Mapping[str, float] = dict.fromkeys(("gateway", "left", "middle", "right", HOST), 0.2)

    def __init__(self, directory: Path, _ports: ExitStack) -> None:
        super().__init__()
        models = save_image_engines(directory)
        self.agents = dict.fromkeys(("left", "middle", "right"), models)
        self._pictures = [
            picture(colour, suffix, height, WIDTH)
            for colour in COLOURS
            for suffix in (".jpg", ".png")
            for height in (WIDTH - 1, WIDTH)
        ]
        self._answers: list[Mapping[str, np.ndarray]] = []
        self._address = ""
        self._readers = ThreadPoolExecutor(READERS)
        self._read: dict[str, Future[Sequence[tuple[int, JobResult]]]] = {}

    def submit(self, client: SyncClient, number: int, queries: int, key: str) -> str:
        inputs = (
            NamedInput(self._name(number, each), self._pictures[self._place(number, each)])
            for each in range(queries)
        )
        job_id = client.submit(self.engine, inputs=inputs, idempotency_key=key).id
        if queries >= READ_ALONG and job_id not in self._read:
            self._read[job_id] = self._readers.submit(self._read_along, job_id)
            self._outcomes["jobs whose results were read while they ran"] += 1
        return job_id

    def start_requests(self, address: str, _stopped: threading.Event) -> list[threading.Thread]:
        self._address = address
        with SyncClient(address) as client:
            self._answers = [
                client.infer(self.engine, {"input:0": [each]}).outputs for each in self._pictures
            ]
        return []

    def _read_along(self, job_id: str) -> Sequence[tuple[int, JobResult]]:
        with SyncClient(self._address, patience=FOLLOWED_S) as client:
            return super()._results(client, job_id)

    def _results(self, client: SyncClient, job_id: str) -> Sequence[tuple[int, JobResult]]:
        read = self._read.get(job_id)
        return super()._results(client, job_id) if read is None else read.result(FOLLOWED_S)

    def _place(self, number: int, query: int) -> int:
        return super()._place(number, query) % len(self._pictures)

    def _name(self, number: int, query: int) -> str:
        return f"image {query} of {number}"

    def _is_right(self, outputs: Mapping[str, np.ndarray], place: int, _version: str) -> bool:
        answer = self._answers[place]
        return all(np.array_equal(outputs[name], value) for name, value in answer.items())


class RequestWork(DataWork):
    """Jobs over numbered inputs, and clients that send them as requests one after the other.

    Attributes:
        input: name of the engine's input.
        retryable: errors after which a client sends its request again.
        request_pause_s: time from an answer to the next request of a client.
    """

    input: str
    retryable: tuple[type[SynergaiError], ...] = (Unavailable,)
    request_pause_s = 0.0
    _inputs: Sequence[np.ndarray] | np.ndarray

    def submit(self, client: SyncClient, number: int, queries: int, key: str) -> str:
        inputs = [{self.input: self._inputs[self._place(number, each)]} for each in range(queries)]
        return client.submit(self.engine, inputs=inputs, idempotency_key=key).id

    def start_requests(self, address: str, stopped: threading.Event) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._send, args=(address, first, stopped), daemon=True)
            for first in range(REQUESTS)
        ]
        for each in threads:
            each.start()
        return threads

    def _send(self, address: str, first: int, stopped: threading.Event) -> None:
        number = first
        with SyncClient(address) as client:
            while not stopped.is_set():
                number = (number + REQUESTS) % INPUTS
                try:
                    query = {self.input: self._inputs[number]}
                    found = client.infer(self.engine, query, deadline=PATIENCE_S)
                except self.retryable as error:  # such as when the gateway was killed
                    self._outcomes[f"requests sent again ({type(error).__name__})"] += 1
                    time.sleep(0.05)
                except SynergaiError as error:
                    self.errors.append(f"a request failed: {error!r}")
                else:
                    self._outcomes[ANSWERED] += 1
                    if not self._is_right(found.outputs, number, found.version):
                        self.errors.append(f"version {found.version} gave a wrong answer")
                    time.sleep(self.request_pause_s)


class StagedWork(RequestWork):
    """Four agents, each with some of the stages.

    The agent `plain` has no peer port, and holds no outputs. The agent `end` cannot reach `begin`,
    whose outputs the gateway relays.
    """

    engine = ENGINE
    input = "image"
    long_queries = 400
    pause_s = 0.3
    victims: Mapping[str, float] = {
        "gateway": 0.1,
        **dict.fromkeys(("begin", "both", "end", "plain"), 0.15),
        HOST: 0.3,
    }

    def __init__(self, directory: Path, ports: ExitStack) -> None:
        super().__init__()
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

    def prepare_kill(self, _fleet: KilledFleet, _victim: str, _rng: random.Random) -> None:
        """Wait for a while until a request is answered, so that kills meet queries on their way."""
        before, until = self._outcomes[ANSWERED], time.monotonic() + MOST_PAUSE_S
        while self._outcomes[ANSWERED] == before and time.monotonic() < until:
            time.sleep(0.01)

    def _is_right(self, outputs: Mapping[str, np.ndarray], place: int, _version: str) -> bool:
        return np.allclose(outputs["probabilities"], self._answers[place], atol=1e-6)
