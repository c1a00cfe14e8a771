"""Tensors between stages that agents pull from each other."""

import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import synergai
from demo.local_fleet import LocalFleet, reserved_port
from synergai.cli.fleet import workers_app as app
from synergai.client.sync import SyncJobHandle
from tests.chains import ENGINE, write_stages
from tests.waiting import wait_until

TENSOR = 3 << 20
QUERIES = 24
IMAGES = np.random.default_rng(0).random((4, 1, TENSOR // 4), dtype=np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: write_stages(folder / name, stages, segment_s=0.002, tensor_bytes=TENSOR, segments=3)
        for name, stages in (
            ("left", [(0, 1), (1, 2)]),
            ("right", [(0, 1), (1, 2)]),
            ("last", [(2, 3)]),
        )
    }


class Peers:
    """A fleet whose agents serve each other; two of them have the same stages.

    Each test leaves it complete, the last one with a worker that was stopped for a while.
    """

    def __init__(self, folder: Path, models: dict[str, Path]) -> None:
        self.models = models
        self.ports = ExitStack()
        self.port = {name: self.ports.enter_context(reserved_port()) for name in models}
        self.fleet = LocalFleet(folder)
        self.fleet.start_gateway()
        for name in models:
            self.start(name)
        self.fleet.wait_for_workers(len(models))

    def start(self, name: str) -> None:
        options = ["--threads", "1", "--peer-port", str(self.port[name])]
        self.fleet.start_agent(name, models=self.models[name], options=options)

    def restart(self, name: str, client: synergai.SyncClient) -> None:
        """Kill an agent, and wait until it is back."""
        self.fleet.agents[name].kill()
        self.fleet.agents[name].wait()
        wait_until(lambda: name not in {each.id for each in client.workers()})
        self.start(name)
        self.fleet.wait_for_workers(len(self.models))


@pytest.fixture(scope="module")
def peers(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("fleet"), models)
    with peers.ports, peers.fleet:
        yield peers


def run(client: synergai.SyncClient, number: int) -> None:
    image = IMAGES[number % len(IMAGES)]
    found = client.infer(ENGINE, {"cut0": image}, deadline=60.0)["cut3"]
    np.testing.assert_array_equal(found, image)


def test_tensors_pass_between_agents_and_not_through_the_gateway(peers: Peers) -> None:
    with synergai.SyncClient(peers.fleet.address) as client:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: run(client, number), range(8)))

        def sent() -> set[str]:
            """Return the workers that have sent the gateway more than a megabyte."""
            return {each.id for each in client.workers() if each.link.from_bytes_per_s}

        wait_until(lambda: "last" in sent())
        assert sent() == {"last"}
        wait_until(lambda: any(worker.peers for worker in client.workers()))
        shown = CliRunner().invoke(app, ["--links", "--target", peers.fleet.address]).output
        assert re.search(r"^(left|right) +last +[\d,.e+]+ Mbit/s", shown, re.MULTILINE)


def test_no_query_is_lost_or_repeated_when_workers_that_hold_tensors_are_killed(
    peers: Peers,
) -> None:
    with synergai.SyncClient(peers.fleet.address) as client, ThreadPoolExecutor(4) as pool:
        job = submit(client)
        found = pool.map(lambda number: run(client, number), range(QUERIES))
        next(found)
        wait_until(lambda: job.status().queries_done > QUERIES // 6)
        for name in ("right", "left"):
            peers.restart(name, client)
        list(found)
        check(job)


def test_gateway_that_is_killed_with_tensors_on_their_way_loses_no_query(peers: Peers) -> None:
    with synergai.SyncClient(peers.fleet.address) as client:
        job = submit(client)
        wait_until(lambda: job.status().queries_done > QUERIES // 6)
        peers.fleet.kill("gateway")
        peers.fleet.start_gateway()
        check(job)
    peers.fleet.wait_for_workers(len(peers.models))


def test_worker_that_hangs_with_tensors_of_others_costs_no_query(peers: Peers) -> None:
    with synergai.SyncClient(peers.fleet.address) as client, ThreadPoolExecutor(4) as pool:
        job = submit(client)
        found = pool.map(lambda number: run(client, number), range(QUERIES))
        wait_until(lambda: job.status().queries_done > QUERIES // 6)
        hung = peers.fleet.agents["left"]
        hung.send_signal(signal.SIGSTOP)
        try:
            list(found)
            check(job)
        finally:
            hung.send_signal(signal.SIGCONT)


def submit(client: synergai.SyncClient) -> SyncJobHandle:
    return client.submit(ENGINE, inputs=({"cut0": IMAGES[n % 4]} for n in range(QUERIES)))


def check(job: SyncJobHandle) -> None:
    job.wait().raise_unless_succeeded()
    results = list(job.results())
    assert [index for index, _ in results] == list(range(QUERIES))
    for index, result in results:
        np.testing.assert_array_equal(result["cut3"], IMAGES[index % 4])
