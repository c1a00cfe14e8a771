"""The blocking client against a fake gateway on loopback."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

import synergai
from tests.integration.client.conftest import FakeGateway
from tests.integration.conftest import both_servers

pytestmark = both_servers

T = TypeVar("T")


async def in_thread(gateway: FakeGateway, work: Callable[[synergai.SyncClient], T]) -> T:
    """Run `work` with a blocking client in a thread, while the fake gateway's loop runs here."""

    def run() -> T:
        with synergai.SyncClient(gateway.address) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_stream_left_early_ends_its_call(gateway: FakeGateway) -> None:
    def first(client: synergai.SyncClient) -> float:
        stream = client.stream("identity", ({"x": [number]} for number in range(10**6)))
        for result in stream:
            return float(result["y"][0])
        raise AssertionError

    assert await in_thread(gateway, first) == 0.0
    assert len(gateway.requests) <= 16 + 1


async def test_inputs_may_come_from_the_client_itself(gateway: FakeGateway) -> None:
    def work(client: synergai.SyncClient) -> list[float]:
        inputs = (
            {"x": client.infer("identity", {"x": [number]})["y"].tolist()} for number in range(4)
        )
        return [float(result["y"][0]) for result in client.stream("identity", inputs)]

    assert await in_thread(gateway, work) == [0.0, 1.0, 2.0, 3.0]


async def test_submitted_job_is_watched_and_awaited(gateway: FakeGateway) -> None:
    def work(client: synergai.SyncClient) -> tuple[list[int], synergai.JobStatus]:
        job = client.submit("identity", queries=10, qos=5.0)
        return [status.queries_done for status in job.watch()], client.job(job.id).wait()

    progress, status = await in_thread(gateway, work)
    assert progress[-1] == 10
    assert status.state is synergai.JobState.SUCCEEDED


async def test_threads_share_one_client(gateway: FakeGateway) -> None:
    def work(client: synergai.SyncClient) -> list[float]:
        answers: list[float] = []

        def ask(number: int) -> None:
            answers.append(float(client.infer("identity", {"x": [number]})["y"][0]))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    assert sorted(await in_thread(gateway, work)) == list(range(8))


async def test_runs_where_an_event_loop_runs_and_needs_no_block(gateway: FakeGateway) -> None:
    async def cell(client: synergai.SyncClient) -> float:
        return float(client.infer("identity", {"x": [7.0]})["y"][0])

    def cells() -> list[float]:
        client = synergai.SyncClient(gateway.address)
        answers = [asyncio.run(cell(client)) for _ in range(2)]  # a client is kept over loops
        client.close()
        return answers

    assert await asyncio.to_thread(cells) == [7.0, 7.0]


async def test_a_closed_client_refuses_calls_until_it_is_connected(gateway: FakeGateway) -> None:
    def work() -> None:
        client = synergai.SyncClient(gateway.address).connect()
        assert client.connect() is client
        assert client.ready()
        client.close()
        client.close()
        with pytest.raises(synergai.Cancelled, match="the client is closed"):
            client.ready()
        with client.connect():
            assert client.infer("identity", {"x": [1.0]})["y"].tolist() == [1.0]

    await asyncio.to_thread(work)


async def test_handle_of_a_job_needs_no_open_client(gateway: FakeGateway) -> None:
    def work() -> None:
        with pytest.raises(synergai.NotFound):
            synergai.SyncClient(gateway.address).job("unknown").status()

    await asyncio.to_thread(work)


async def test_calls_of_a_callback_on_the_clients_loop_are_refused(gateway: FakeGateway) -> None:
    def work(client: synergai.SyncClient) -> None:
        def ask(_progress: object) -> None:
            client.ready()

        with pytest.raises(synergai.InvalidInput, match="event loop"):
            client.submit("identity", inputs=[{"x": [1.0]}], on_progress=ask)

    await in_thread(gateway, work)


async def test_clients_share_one_thread(gateway: FakeGateway) -> None:
    for _ in range(3):
        await in_thread(gateway, lambda client: client.ready())
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("synergai-client") == 1


async def test_script_with_several_clients_ends_silently(gateway: FakeGateway) -> None:
    script = (
        "import sys, synergai\n"
        "for _ in range(3):\n"
        "    with synergai.SyncClient(sys.argv[1]) as client:\n"
        "        assert client.infer('identity', {'x': [1]})['y'].tolist() == [1]\n"
    )
    command = [sys.executable, "-c", script, gateway.address]
    ran = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
