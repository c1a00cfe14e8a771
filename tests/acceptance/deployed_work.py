"""Work over an engine that the gateway deploys in stages while versions and workers change."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import onnxruntime

from demo.local_fleet import reserved_port
from profiler.zoo.recipes import build
from synergai import JobState, SyncClient
from synergai.errors import DeadlineExceeded, NotFound, Overloaded, SynergaiError, Unavailable
from synergai.models.manifest import pack
from synergai.names import versioned
from tests.acceptance.crash_work import INPUTS, RequestWork
from tests.acceptance.deployed_stages import find_disorder
from tests.acceptance.fleets import PLANNER, KilledFleet
from tests.layered_engines import features, write_layers

T = TypeVar("T")

OTHER: Final = "onnx_identity"
"""An engine that is not deployed."""
WORKERS: Final = ("east", "north", "south", "west")
LAYERS: Final = 12
CHANNELS: Final = 256
ROWS: Final = 2
"""Of an input: with so many, the outputs of a stage are large enough to be held."""
MEMORY_MB: Final = 135
"""Of a worker at first: too little for the engine, and more than enough for half."""
LARGE_MEMORY_MB: Final = 200
"""Of at most one worker, which has it whole."""
MOST_DELAY_S: Final = 12.0
"""From a change to a kill: a little longer than a deployment takes."""
REST_EVERY: Final = 10
"""Kills after which everything comes to rest, to see whether anything is left over."""
JOBS_WITHIN_S: Final = 180.0
"""Time in which all jobs end while no others are submitted."""
WITHIN_S: Final = 60.0
"""Time after the last change in which everything is deployed and cleaned up."""
MOST_VERSIONS: Final = 2
DRAIN_S: Final = 20.0
"""Time in which the jobs of a version have to end; otherwise, it is not removed."""


class DeployedWork(RequestWork):
    """Jobs and requests over an engine that no worker can hold whole.

    Before each kill, something changes: a version is pushed or removed, a worker leaves or comes
    back, or has other memory from now on. A process is killed while the gateway plans for that,
    cuts, places and loads stages, or retires others.
    """

    engine = "layers"
    input = "features"
    long_queries = 60
    pause_s = 0.1
    request_pause_s = 0.1
    victims: Mapping[str, float] = {"gateway": 0.3, PLANNER: 0.3} | dict.fromkeys(WORKERS, 0.1)
    retryable = (Unavailable, Overloaded, DeadlineExceeded)

    def __init__(self, directory: Path, ports: ExitStack) -> None:
        super().__init__()
        self._directory = directory
        build(OTHER, directory / "other")
        self.agents = dict.fromkeys(WORKERS, directory / "other")
        self._port = {name: ports.enter_context(reserved_port()) for name in WORKERS[:2]}
        self._agent_options = {name: self._options_of(name, MEMORY_MB) for name in WORKERS}
        self.options = self._agent_options
        self._inputs = [features(number, ROWS, CHANNELS) for number in range(INPUTS)]
        self._answers: dict[str, Sequence[np.ndarray]] = {}
        self._client: SyncClient
        self._versions: list[int] = []
        self._rests: list[float] = []
        self._away = self._large = ""
        self._kills = 0
        self._changes = ThreadPoolExecutor(1)
        self._change: Future[None] = self._changes.submit(lambda: None)
        # Held while a job is submitted, or none may be.
        self._submitting = threading.Lock()

    def _options_of(self, name: str, memory_mb: int) -> Sequence[str]:
        """Return the options of an agent; two of them hold tensors."""
        peer = ("--peer-port", str(self._port[name])) if name in self._port else ()
        return ("--memory-mb", str(memory_mb), *peer)

    def submit(self, client: SyncClient, number: int, queries: int, key: str) -> str:
        with self._submitting:
            try:
                return super().submit(client, number, queries, key)
            except SynergaiError as error:
                self._outcomes[f"submissions repeated ({type(error).__name__})"] += 1
                if not isinstance(error, self.retryable):
                    self.errors.append(f"a submission failed: {error!r}")
                raise

    def start_requests(self, address: str, stopped: threading.Event) -> list[threading.Thread]:
        self._client = SyncClient(address, patience=WITHIN_S)
        self._push()
        wait_for(lambda: self._client.ready(self.engine), WITHIN_S)
        return super().start_requests(address, stopped)

    def _is_right(self, outputs: Mapping[str, np.ndarray], place: int, version: str) -> bool:
        return np.allclose(outputs["scores"], self._answers[version][place], rtol=1e-4, atol=1e-5)

    # --- changes --------------------------------------------------------------------------------

    def prepare_kill(self, fleet: KilledFleet, victim: str, rng: random.Random) -> None:
        """Change something, and wait until the gateway may be on its way to another deployment."""
        self._kills += 1
        if self._kills % REST_EVERY == 0:
            self.errors += self._come_to_rest(fleet)
        what = rng.choice(("version", "presence", "memory"))
        name = rng.choice(WORKERS)
        match what:
            case "version" if self._change.done():
                self._change.result()
                self._change = self._changes.submit(self._change_versions)
            case "presence" if self._away:
                self._return(fleet)
            case "presence":
                self._away = name
                fleet.stop(name)
            case "memory" if (name := self._large or name) != self._away:
                self._large = "" if self._large else name
                memory_mb = LARGE_MEMORY_MB if self._large else MEMORY_MB
                self._agent_options[name] = self._options_of(name, memory_mb)
                fleet.stop(name)
                fleet.start(name)
            case _:
                what = "nothing"
        self._outcomes[f"changes of {what}"] += 1
        if victim == PLANNER:
            wait_for(lambda: bool(fleet.children("gateway")), MOST_DELAY_S)
            time.sleep(rng.uniform(0.0, 1.0))
        else:
            time.sleep(rng.uniform(0.0, MOST_DELAY_S))
        self._note_states()

    def end_changes(self, fleet: KilledFleet) -> None:
        if self._away:  # the others may not have the memory for two versions
            self._return(fleet)

    def _note_states(self) -> None:
        """Count what the gateway is doing with the engine when a process is killed."""
        with suppress(SynergaiError):
            states = {each.state for each in self._client.deployments()}
            self._outcomes[f"kills while {' and '.join(sorted(states)) or 'whole'}"] += 1

    def _return(self, fleet: KilledFleet) -> None:
        fleet.start(self._away)
        self._away = ""

    def _change_versions(self) -> None:
        if len(self._versions) < MOST_VERSIONS:
            self._push()
        else:
            self._remove_unused(min(self._versions))

    def _push(self) -> None:
        """Push another version."""
        version = len(self._answers) + 1
        folder = write_layers(
            self._directory / str(version), LAYERS, seed=version, channels=CHANNELS
        )
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        self._answers[str(version)] = [
            session.run(None, {self.input: each})[0] for each in self._inputs
        ]
        package = pack(folder, self.engine, version)
        manifest = package.manifest.encode()
        self._repeat(
            lambda: self._client.push_engine(self.engine, version, manifest, package.paths)
        )
        self._versions.append(version)

    def _remove_unused(self, version: int) -> None:
        """Remove a version once the next one is ready, unless jobs with it do not end."""
        name = versioned(self.engine, str(version))

        def is_unused() -> bool:
            is_ready = self._client.ready(versioned(self.engine, str(max(self._versions))))
            return is_ready and not self._has_jobs(str(version))

        with self._submitting:
            if not wait_for(is_unused, DRAIN_S):
                self._outcomes["versions that were not removed"] += 1
                return
            self._remove(version)
            # Until then, jobs may still get it.
            wait_for(lambda: not self._client.ready(name), DRAIN_S)

    def _has_jobs(self, version: str = "") -> bool:
        """Return whether jobs with a version, or with any, have not ended."""
        unfinished = (JobState.QUEUED, JobState.RUNNING)
        jobs = self._repeat(lambda: self._client.jobs(unfinished, limit=1000))
        return any(version in ("", each.spec.version) for each in jobs)

    def _remove(self, version: int) -> None:
        with suppress(NotFound):  # the gateway was killed after it had removed it
            self._repeat(lambda: self._client.remove_engine(self.engine, version))
        self._versions.remove(version)

    def _repeat(self, call: Callable[[], T]) -> T:
        """Return what a call returns once it succeeds."""
        while True:
            try:
                return call()
            except self.retryable:
                time.sleep(0.2)

    # --- what is left over ----------------------------------------------------------------------

    def find_disorder(self, fleet: KilledFleet) -> list[str]:
        found = self._come_to_rest(fleet)
        for version in list(self._versions):
            self._remove(version)
        return found + self._come_to_rest(fleet)

    def _come_to_rest(self, fleet: KilledFleet) -> list[str]:
        """Return what is not as it should be a minute after the last change or job."""
        self.end_changes(fleet)
        self._change.result()
        with self._submitting:
            if not wait_for(lambda: not self._has_jobs(), JOBS_WITHIN_S):
                return [f"after {self._kills} kills, jobs do not end"]
            return self._find_disorder(fleet)

    def _find_disorder(self, fleet: KilledFleet) -> list[str]:
        began = time.monotonic()
        found: list[str] = []

        def is_in_order() -> bool:
            try:
                found[:] = find_disorder(fleet, self._client, self.engine)
            except (OSError, SynergaiError) as error:  # a file or folder has just been removed
                found[:] = [f"it cannot be told: {error!r}"]
            return not found

        wait_for(is_in_order, WITHIN_S)
        self._rests.append(time.monotonic() - began)
        return [f"after {self._kills} kills, {each}" for each in found]

    def summary(self) -> str:
        return f"{super().summary()}; in order after {max(self._rests):.0f} s at most"


def wait_for(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until a condition holds; return whether it does in time."""
    until = time.monotonic() + within_s
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return holds
