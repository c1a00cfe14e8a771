"""The client against a fake gateway on loopback."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import synergai
from tests.integration.client.conftest import FakeGateway
from tests.integration.conftest import both_servers
from tests.waiting import until

pytestmark = both_servers


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[synergai.Client]:
    async with synergai.Client(gateway.address) as client:
        yield client


def x(*numbers: float) -> dict[str, NDArray[np.float32]]:
    return {"x": np.array(numbers, np.float32)}


# --- inference --------------------------------------------------------------------------


async def test_infer_returns_arrays(client: synergai.Client) -> None:
    result = await client.infer("identity", x(1, 2, 3), deadline=30.0)
    np.testing.assert_array_equal(result["y"], [1, 2, 3])
    assert result["y"].dtype == np.float32
    assert (result.engine, result.version) == ("identity", "1")


async def test_infer_options_become_protocol_parameters(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    await client.infer(
        "identity", x(1), deadline=30.0, priority=9, outputs=["y"], parameters={"note": "a"}
    )
    [request] = gateway.requests
    assert [output.name for output in request.outputs] == ["y"]
    assert request.parameters["priority"].int64_param == 1, "the protocol's first"
    assert request.parameters["note"].string_param == "a"


@pytest.mark.parametrize("inputs", [np.ones(3), [1, 2], 7, None, {}])
async def test_inputs_that_are_not_a_mapping_are_rejected_with_the_names_of_the_inputs(
    client: synergai.Client, inputs: object
) -> None:
    with pytest.raises(
        synergai.InvalidInput, match="'identity' has the inputs x: pass a mapping of arrays by"
    ):
        await client.infer("identity", cast("Mapping[str, ArrayLike]", inputs))


async def test_expired_deadline_cancels_the_query_at_the_server(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    await client.infer("identity", x(1))  # to connect takes part of a deadline
    with pytest.raises(synergai.DeadlineExceeded):
        await client.infer("stuck", x(1), deadline=0.5)
    assert 0 < (gateway.infer_within[1] or 0.0) <= 0.51, "gRPC rounds up"
    await until(lambda: not gateway.stalled)


async def test_deadline_covers_the_description_of_the_engine_and_the_query(
    client: synergai.Client, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 20.0])  # before and behind the description
    monotonic = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("synergai.client.client.time", monotonic)
    await client.infer("identity", x(1), deadline=30.0)
    assert 9 < (gateway.infer_within[0] or 0.0) <= 10.1


@pytest.mark.parametrize(
    ("deadline", "error", "message"),
    [
        *((value, synergai.DeadlineExceeded, "more than 0 seconds") for value in (0.0, -1.0)),
        (math.nan, synergai.InvalidInput, "nan"),
        *(
            (value, synergai.InvalidInput, f"must be a number of seconds, not {value!r}")
            for value in ("5s", "5", [5.0])
        ),
    ],
)
async def test_impossible_deadline_is_refused_without_a_call(
    client: synergai.Client,
    gateway: FakeGateway,
    deadline: Any,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        await client.infer("identity", x(1), deadline=deadline)
    with pytest.raises(error, match=re.escape(message)):
        await anext(client.stream("identity", [x(1)], deadline=deadline))
    with pytest.raises(error, match=re.escape(message)):
        await client.load("identity", deadline=deadline)
    assert gateway.requests == []


@pytest.mark.parametrize("deadline", [math.inf, 1e300])
async def test_infinite_deadline_is_not_sent(
    client: synergai.Client, gateway: FakeGateway, deadline: float
) -> None:
    await client.infer("identity", x(1), deadline=deadline)
    async for _ in client.stream("identity", [x(1)], deadline=deadline):
        pass
    assert gateway.infer_within == [None, None]


async def test_single_output_needs_no_list(client: synergai.Client, gateway: FakeGateway) -> None:
    await client.infer("identity", x(1), outputs="yes")
    async for _ in client.stream("identity", [x(1)], outputs="yes"):
        pass
    assert [[each.name for each in r.outputs] for r in gateway.requests] == [["yes"], ["yes"]]
    with pytest.raises(synergai.InvalidInput, match="has no output 'yes'"):
        await client.submit("identity", inputs=np.zeros((1, 1)), outputs="yes")


async def test_cancelling_a_task_cancels_only_its_query(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    first, second = (asyncio.create_task(client.infer("stuck", x(number))) for number in range(2))
    await until(lambda: gateway.stalled == 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await until(lambda: gateway.stalled == 1)
    assert not second.done()
    second.cancel()
    assert (await client.infer("identity", x(3)))["y"] == 3


async def test_any_number_of_queries_may_run_concurrently(client: synergai.Client) -> None:
    calls = [client.infer("identity", x(number), deadline=60.0) for number in range(3000)]
    results = await asyncio.gather(*calls)
    assert [result["y"][0] for result in results] == list(range(3000))


async def test_closing_the_client_fails_its_calls(gateway: FakeGateway) -> None:
    async with synergai.Client(gateway.address) as client:
        task = asyncio.create_task(client.infer("stuck", x(1)))
        await until(lambda: gateway.stalled)
    with pytest.raises(synergai.Cancelled, match="closed"):
        await task
    with pytest.raises(synergai.Cancelled, match="closed"):
        await client.infer("identity", x(1))


async def test_call_is_retried_while_the_gateway_is_unavailable(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    gateway.unavailable = 2
    result = await client.infer("identity", x(1), deadline=30.0)
    assert result["y"] == 1


async def test_request_over_the_size_limit_fails_alone(gateway: FakeGateway) -> None:
    async with synergai.Client(gateway.address, max_message_bytes=10_000) as client:
        waiting = asyncio.create_task(client.infer("stuck", x(1)))
        with pytest.raises(synergai.InvalidInput, match="at most 10,000"):
            await client.infer("identity", x(*range(3000)))
        assert not waiting.done()
        waiting.cancel()


async def test_response_over_the_size_limit_fails_alone(gateway: FakeGateway) -> None:
    async with synergai.Client(gateway.address, max_message_bytes=10_000) as client:
        calls = [client.infer("wide", x(*range(5))), client.infer("identity", x(2))]
        wide, other = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(wide, synergai.Overloaded), wide
    assert isinstance(other, synergai.InferResult), other


async def test_attempts_are_bounded(gateway: FakeGateway) -> None:
    gateway.unavailable = 10
    async with synergai.Client(gateway.address, attempts=2) as client:
        with pytest.raises(synergai.Unavailable, match="the gateway is stopping"):
            await client.infer("identity", x(1))
    assert gateway.unavailable == 8


async def test_query_with_a_deadline_outlasts_an_unavailable_gateway(gateway: FakeGateway) -> None:
    gateway.unavailable = gateway.describes_late = 3
    async with synergai.Client(gateway.address, attempts=2) as client:
        assert (await client.infer("identity", x(1), deadline=60))["y"] == 1.0


async def test_address_at_which_nobody_has_answered_is_told_before_the_deadline() -> None:
    async with synergai.Client("127.0.0.1:1", attempts=2) as client:
        with pytest.raises(synergai.Unavailable, match="connection refused"):
            async with asyncio.timeout(10):
                await client.infer("identity", x(1), deadline=60)


async def test_query_whose_workers_have_failed_is_not_sent_until_its_deadline(
    gateway: FakeGateway,
) -> None:
    async with synergai.Client(gateway.address, attempts=2) as client:
        with pytest.raises(synergai.Unavailable, match="the workers that ran"):
            await client.infer("identity", x(np.inf), deadline=60)
    assert len(gateway.requests) == 2


async def test_deadline_does_not_outlast_the_patience(gateway: FakeGateway) -> None:
    gateway.unavailable = 10
    async with synergai.Client(gateway.address, attempts=2, patience=0.0) as client:
        with pytest.raises(synergai.Unavailable, match="the gateway is stopping"):
            await client.infer("identity", x(1), deadline=60)
    assert gateway.unavailable == 8


@pytest.mark.parametrize("scheme", ["http://", "https://"])
def test_url_as_target_is_rejected_with_what_to_leave_out(scheme: str) -> None:
    with pytest.raises(synergai.InvalidInput, match=f"is not an address: leave out '{scheme}'$"):
        synergai.Client(f"{scheme}127.0.0.1:8001")


async def test_client_opens_when_it_is_told_or_at_its_first_call(gateway: FakeGateway) -> None:
    told = await synergai.Client(gateway.address).connect()
    lazy = synergai.Client(gateway.address)
    for client in (told, lazy):
        assert (await client.infer("identity", x(1)))["y"] == 1.0
        await client.close()
        with pytest.raises(synergai.Cancelled, match="the client is closed"):
            await client.ready()
    assert await (await lazy.connect()).ready()
    await lazy.close()


def test_client_that_opens_without_an_event_loop_says_how() -> None:
    with pytest.raises(synergai.InvalidInput, match=r"await client\.connect\(\)"):
        synergai.Client("127.0.0.1:1").job("unknown")


@pytest.mark.parametrize("priority", [10, -1])
async def test_priority_out_of_range_is_rejected(client: synergai.Client, priority: int) -> None:
    with pytest.raises(synergai.InvalidInput, match="priority"):
        await client.infer("identity", x(1), priority=priority)


# --- streams ----------------------------------------------------------------------------


async def test_stream_yields_in_order_of_the_inputs(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    await client.infer("identity", {"x": [1]})
    gateway.backwards = 4
    stream = client.stream("identity", ({"x": [i]} for i in range(40)), window=8)
    assert [result["y"].item() async for result in stream] == list(range(40))
    assert len(gateway.metadata_within) == 1, "the engine is described once"


async def test_stream_is_limited_to_its_window(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    taken = yielded = most = 0

    def inputs() -> Iterator[dict[str, NDArray[np.float32]]]:
        nonlocal taken, most
        for i in range(30):
            taken += 1
            most = max(most, taken - yielded)
            yield x(i)

    gateway.backwards = 3
    async for _ in client.stream("identity", inputs(), window=3):
        yielded += 1
    assert yielded == 30
    assert most <= 3 + 1, "one more input is taken while the window is full"


async def test_stream_deadline_applies_to_each_query(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    async for _ in client.stream("identity", [x(1), x(2)], deadline=30.25):
        pass
    assert [30 < (within or 0.0) <= 31 for within in gateway.infer_within] == [True, True]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (x(-1), synergai.Overloaded),
        ({"x": np.array([1e300])}, synergai.InvalidInput),
        ({"z": np.ones(1)}, synergai.InvalidInput),
    ],
)
async def test_failed_query_of_a_stream_has_its_error_and_the_others_are_answered(
    client: synergai.Client, bad: dict[str, NDArray[Any]], error: type[synergai.SynergaiError]
) -> None:
    answers = [each async for each in client.stream("identity", [x(1), bad, x(2)], window=1)]
    assert isinstance(answers[1].error, error)
    assert not answers[1].outputs
    with pytest.raises(error):
        answers[1]["y"]
    assert [each["y"].item() for each in (answers[0], answers[2])] == [1, 2]


async def test_leaving_a_stream_early_ends_its_call(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    async def inputs() -> AsyncIterator[dict[str, NDArray[np.float32]]]:
        yield x(1)
        await asyncio.Event().wait()

    async with aclosing(client.stream("identity", inputs())) as results:
        async for result in results:
            assert result["y"] == 1
            break
    assert len(gateway.requests) == 1


# --- jobs -------------------------------------------------------------------------------


async def test_submitted_job_is_watched_until_it_ends(client: synergai.Client) -> None:
    job = await client.submit("identity", queries=10, qos=5.0, priority=3, tenant="roof")
    states = [status.state async for status in job.watch()]
    assert states == [
        synergai.JobState.QUEUED,
        synergai.JobState.RUNNING,
        synergai.JobState.SUCCEEDED,
    ]
    status = await job.status()
    assert status.spec == synergai.JobSpec(
        engine=status.spec.engine, queries=10, qos=5.0, priority=3, tenant="roof"
    )
    assert status.queries_done == 10
    assert status.accuracy == 0.9
    assert [(each.worker_id, each.count) for each in status.executions] == [("nano", 10)]


async def test_watch_reconnects_while_the_gateway_is_unavailable(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    job = await client.submit("identity", queries=10)
    gateway.unavailable = 2
    status = await job.wait()
    assert status.state is synergai.JobState.SUCCEEDED
    assert gateway.unavailable == 0


async def test_watch_fails_after_patience(gateway: FakeGateway) -> None:
    async with synergai.Client(gateway.address, patience=0.0) as client:
        job = await client.submit("identity", queries=10)
        gateway.unavailable = 10**6
        with pytest.raises(synergai.Unavailable, match="the gateway is stopping"):
            await job.wait()


async def test_retried_submission_has_the_same_key(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    gateway.unavailable = 1
    await client.submit("identity", queries=1)
    first, second = gateway.submissions
    assert first == second != ""
    assert len(gateway.jobs) == 1


async def test_jobs_are_listed_by_state(client: synergai.Client) -> None:
    done = await client.submit("identity", queries=1)
    await done.wait()
    await client.submit("stuck", queries=1)
    [listed] = await client.jobs([synergai.JobState.SUCCEEDED])
    assert listed.id == done.id
    assert len(await client.jobs()) == 2


# --- the fleet --------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [None, 600.0])
async def test_query_waits_for_the_description_of_its_engine_up_to_its_own_deadline(
    client: synergai.Client, gateway: FakeGateway, deadline: float | None
) -> None:
    await client.infer("identity", {"x": [1.0]}, deadline=deadline)
    assert gateway.metadata_within == [None], "an inspection may take a minute"


async def test_inputs_follow_a_replaced_engine_after_one_failure(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    async def ask_in_stream() -> None:
        async with aclosing(client.stream("identity", [{"x": [1.0]}])) as results:
            assert [result["y"].tolist() async for result in results] == [[1]]

    async def ask() -> None:
        assert (await client.infer("identity", {"x": [1.0]}))["y"].tolist() == [1]

    for call, datatype in ((ask_in_stream, "INT64"), (ask, "FP32")):
        await call()
        gateway.datatype = datatype
        with pytest.raises(synergai.InvalidInput, match=f"must be {datatype}"):
            await call()
        await call()


async def test_description_waits_for_the_longest_inspection(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    await client.engine("identity")
    await client.engine("identity", deadline=20.0)
    longest_s, within_s = gateway.metadata_within
    assert longest_s is not None
    assert longest_s > 60.0
    assert within_s == pytest.approx(20.0, abs=5.0)


async def test_engines_are_loaded_and_unloaded(
    client: synergai.Client, gateway: FakeGateway
) -> None:
    await client.unload("identity")
    assert gateway.unloaded == {"identity"}
    gateway.unavailable = 1
    await client.load("identity", deadline=30.0)
    assert gateway.unloaded == set()
    with pytest.raises(synergai.EngineUnusable, match="truncated"):
        await client.load("broken")
    with pytest.raises(synergai.NotFound):
        await client.unload("nothing")


async def test_ready_returns_a_bool(client: synergai.Client) -> None:
    assert await client.ready()
    assert await client.ready("identity")
    assert not await client.ready("broken")
    assert not await client.ready("nothing")
