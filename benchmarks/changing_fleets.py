"""Fleets whose machines and links change, and a steady load on them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from benchmarks.drawn_networks import INPUT, seconds_by_cut
from benchmarks.paced_backend import EmulatedWorker, emulated, write_site, write_worker
from demo.local_fleet import LocalFleet
from synergai import Client
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from benchmarks.drawn_changes import Machine, Network, State
    from benchmarks.namespaces import Namespaces

IN_FLIGHT: Final = 16
DEADLINE_S: Final = 60.0
PEER_PORT: Final = 8020


class Load(threading.Thread):
    """Queries, always as many in flight, of engines in turn.

    Attributes:
        answered: when queries were answered.
        faults: texts of errors, and how often each occurred.
    """

    def __init__(self, address: str, names: dict[str, str], mix: dict[str, int]) -> None:
        super().__init__()
        self._address = address
        self._given = names, mix
        self._ended = threading.Event()
        self.answered: list[float] = []
        self.faults: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def ask(self, names: dict[str, str], mix: dict[str, int]) -> None:
        """Ask for other engines from now on.

        Args:
            names: the name under which each engine is asked.
            mix: queries of each in a row.
        """
        self._given = names, mix

    def per_s(self, seconds: float) -> float:
        """Return the rate of answers in the time to come."""
        begun, before = time.monotonic(), len(self.answered)
        time.sleep(seconds)
        return (len(self.answered) - before) / (time.monotonic() - begun)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        counts: Counter[str] = Counter()

        async def ask_on() -> None:
            while not self._ended.is_set():
                names, mix = self._given
                engine = min(mix, key=lambda each: counts[each] / mix[each])
                counts[engine] += 1
                try:
                    await client.infer(names[engine], INPUT, deadline=DEADLINE_S)
                    self.answered.append(time.monotonic())
                except SynergaiError as error:
                    self.faults[str(error)] += 1
                    await asyncio.sleep(0.2)

        async with Client(self._address) as client, asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(ask_on())


class Fleet:
    """The workers of a sequence, in namespaces of their own, and a gateway.

    Args:
        has_memory: whether workers have the memory of the drawn machines, and not all they need.
    """

    def __init__(
        self, folder: Path, network: Namespaces, options: Sequence[str], *, has_memory: bool
    ) -> None:
        self._folder = folder
        self._network = network
        self._has_memory = has_memory
        self._local = LocalFleet(folder / "fleet")
        self.address = self._local.address
        self._hub = self._local.hub_address.replace("127.0.0.1", network.gateway)
        write_site(folder / "site")
        self._local.start_gateway(["--hub", self._hub, "--insecure", *options])
        self._machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._local.stop()

    def models(self, name: str) -> Path:
        """Return the model directory of a worker."""
        return self._folder / f"models-{name}"

    def become(self, state: State, engines: Mapping[str, Network]) -> None:
        """Change the machines and links to a state; engines are known by name."""
        for name in self._machines.keys() - state.machines.keys():
            self._local.kill(name)
        for name, machine in state.machines.items():
            before = self._machines.get(name)
            heads = {engine: seconds_by_cut(each, machine) for engine, each in engines.items()}
            memory_bytes = 1e6 * machine.memory_mb if self._has_memory else 1e12
            worker = EmulatedWorker(heads, memory_bytes)
            write_worker(self._folder / f"{name}.json", worker)
            if before is None or before.mbit_s != machine.mbit_s:
                self._network.limit(name, machine.mbit_s)
            has_lost = self._has_memory and before and before.memory_mb != machine.memory_mb
            if has_lost:
                self._local.kill(name)
            if before is None or has_lost:
                self._start(name, machine)
        self._machines = dict(state.machines)

    def _start(self, name: str, machine: Machine) -> None:
        self.models(name).mkdir(exist_ok=True)
        options = ["--gateway", self._hub, "--threads", "1", "--peer-port", str(PEER_PORT)]
        if self._has_memory:
            options += ["--memory-mb", str(machine.memory_mb)]
        worker = emulated(self._folder / "site", self._folder / f"{name}.json")
        self._local.start_agent(
            name,
            models=self.models(name),
            worker_class=name,
            options=options,
            prefix=[*self._network.prefix(name), *worker],
        )

    def wait_for(self, count: int) -> None:
        """Wait for workers that have engines."""
        self._local.wait_for_workers(count)
