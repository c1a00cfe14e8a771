"""Jobs over the client's own data, against a fake gateway."""

import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

import synergai
from synergai import errors
from tests.integration.client.conftest import FakeGateway, RunCommand


async def test_results_have_the_positions_of_their_inputs(gateway: FakeGateway) -> None:
    async with synergai.Client(gateway.address) as client:
        inputs = [
            np.ones(1, np.float32),
            [2.0],
            {"x": [3.0]},
            synergai.NamedInput("four", 4),
            b"x",
        ]
        job = await client.submit("identity", inputs=inputs, qos=60.0)
        found = [result async for _, result in job.results()]
    assert [result.index for result in found] == [0, 1, 2, 3, 4]
    assert [result.name for result in found] == ["0", "1", "2", "four", "4"]
    assert [result["y"].tolist() for result in found[:4]] == [[1.0], [2.0], [3.0], [4.0]]
    assert "tensors only" in found[4].error
    with pytest.raises(synergai.SynergaiError, match="input 4"):
        found[4]["y"]


async def test_array_whose_rows_do_not_suit_the_engine_is_refused_before_the_upload(
    gateway: FakeGateway,
) -> None:
    async with synergai.Client(gateway.address) as client:
        with pytest.raises(errors.InvalidInput, match=r"shape \[3, 1, 2\] does not suit input 'x'"):
            await client.submit("identity", inputs=np.zeros((3, 1, 2)))
    assert gateway.uploads == {}


async def test_upload_continues_after_the_gateway_was_unavailable(gateway: FakeGateway) -> None:
    async with synergai.Client(gateway.address) as client:
        gateway.unavailable = 2
        rows = np.zeros((300, 25_000), np.float32)  # 30 MB in about 30 messages
        rows[:, 0] = range(300)
        job = await client.submit("identity", inputs=rows)
        gateway.unavailable = 1
        async with aclosing(job.results()) as results:
            found = [int(result["y"][0]) async for _, result in results]
    assert found == list(range(300))


@pytest.mark.parametrize("error", [errors.EngineUnusable("mine"), errors.Conflict("mine")])
async def test_error_of_an_iterable_is_not_taken_for_one_of_its_upload(
    gateway: FakeGateway, error: errors.SynergaiError
) -> None:
    def broken() -> Iterator[dict[str, list[float]]]:
        yield {"x": [1.0]}
        raise error

    async with synergai.Client(gateway.address) as client:
        with pytest.raises(type(error), match="mine") as raised:
            await client.submit("identity", inputs=broken(), idempotency_key="k")
    assert raised.value is error


async def test_command_writes_the_results_and_continues(
    gateway: FakeGateway, ask: RunCommand, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.arange(8.0).reshape(4, 2))
    (tmp_path / "bad.npy").write_bytes(b"no array")
    output = tmp_path / "results"
    command = ("submit", "identity", "--inputs", f"{tmp_path}/*.npy", "--output", str(output))
    done = await ask(*command)
    assert done.code == 0, done.err
    assert "5 results in" in done.out
    assert "bad.npy: it is not an array in NumPy's format" in done.err
    found = dict(synergai.read_results(output))
    assert [found[index].name.rpartition("/")[2] for index in range(5)] == [
        "bad.npy",
        "rows.npy#0",
        "rows.npy#1",
        "rows.npy#2",
        "rows.npy#3",
    ]
    assert found[4]["y"].tolist() == [6.0, 7.0]

    submissions = len(gateway.submissions)
    again = await ask(*command, "--json")
    facts = json.loads(again.out)
    assert (again.code, facts["results"], len(gateway.submissions)) == (0, 5, submissions)

    kept = dict(gateway.uploads)
    del gateway.uploads[next(iter(gateway.uploads))]  # the results are no longer kept
    again = await ask(*command, "--json")
    assert (again.code, json.loads(again.out)["results"]) == (0, 5), again.err
    gateway.uploads |= kept

    other = await ask(*command, "--qos", "2h")
    assert other.code == 1
    assert f"has the results of job {facts['id']} (identity); choose another" in other.err

    fetched = tmp_path / "fetched"
    options = ("--output", str(fetched), "--follow")
    for new in (5, 0):
        done = await ask("jobs", "results", facts["id"], *options)
        assert done.code == 0, done.err
        assert f"5 results in {fetched} ({new} new)" in done.out
    assert {index: result.name for index, result in synergai.read_results(fetched)} == {
        index: result.name for index, result in found.items()
    }


async def test_command_without_output_leaves_results_at_the_gateway(
    ask: RunCommand, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.ones(3, np.float32))
    inputs = ("submit", "identity", "--inputs", str(tmp_path / "a.npy"))
    detached = await ask(*inputs, "--detach")
    waited = await ask(*inputs)
    job_id = detached.out.strip()
    assert job_id
    assert f"synergai jobs watch {job_id}" in detached.err
    assert f"synergai jobs results {job_id} --output DIR" in detached.err
    assert (detached.code, waited.code, waited.out.split()[0]) == (0, 0, job_id)
    assert f"synergai jobs results {job_id} --output DIR" in waited.out


async def test_command_finds_its_job_after_a_promotion(
    gateway: FakeGateway, ask: RunCommand, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.ones(3, np.float32))
    output = ("--output", str(tmp_path / "results"))
    command = ("submit", "identity", "--inputs", str(tmp_path / "a.npy"), "--json")
    first = await ask(*command, "--detach")
    gateway.version = "2"
    again = await ask(*command, *output)
    assert (again.code, json.loads(again.out)["id"]) == (0, json.loads(first.out)["id"]), again.err


async def test_rejected_job_does_not_claim_the_directory(
    gateway: FakeGateway, ask: RunCommand, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.ones(3, np.float32))
    output = tmp_path / "results"
    command = ("submit", "identity", "--inputs", str(tmp_path / "a.npy"), "--output", str(output))
    gateway.refused_from = 0
    refused = await ask(*command)
    assert (refused.code, output.exists()) == (1, False), refused.err
    gateway.refused_from = None
    other = await ask(*command, "--qos", "2h")
    assert other.code == 0, other.err


async def test_follower_of_results_learns_that_the_job_did_not_succeed(
    gateway: FakeGateway, ask: RunCommand, tmp_path: Path
) -> None:
    async with synergai.Client(gateway.address) as client:
        job = await client.submit("identity", inputs=np.arange(6.0).reshape(3, 2))
        await job.cancel()
        found: list[int] = []

        async def follow() -> None:
            async for index, _ in job.results():
                found.append(index)  # what was read before the error counts

        with pytest.raises(errors.Cancelled, match=f"job {job.id} cancelled"):
            await follow()
        assert found == [0, 1, 2]
        assert [index async for index, _ in job.results(follow=False)] == [0, 1, 2]
    results = ("jobs", "results", job.id)
    options = ("--output", str(tmp_path / "a"))
    for _ in range(2):
        followed = await ask(*results, *options, "--follow")
        assert followed.code == 1
        assert f"job {job.id} cancelled" in followed.err
        assert followed.out
        assert (await ask(*results, *options)).code == 0
