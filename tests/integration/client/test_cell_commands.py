"""Commands on a map of cells, run as processes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.client.conftest import FakeGateway, RunCommand


@pytest.fixture
async def other() -> AsyncIterator[FakeGateway]:
    other = FakeGateway()
    other.start()
    yield other
    await other.server.stop(0)


def map_of(path: Path, here: str, there: str) -> str:
    path.write_text(
        f"[here]\ngateways = '{here}'\nengines = ['ident*']\n[there]\ngateways = '{there}'\n"
    )
    return f"@{path}"


@pytest.fixture
def target(tmp_path: Path, gateway: FakeGateway, other: FakeGateway) -> str:
    return map_of(tmp_path / "cells.toml", gateway.address, other.address)


async def test_job_goes_to_the_cell_of_its_engine(
    gateway: FakeGateway, other: FakeGateway, target: str, run: RunCommand
) -> None:
    for engine in ("identity", "wide"):
        done = await run("submit", engine, "--queries", "5", "--key", engine, "--target", target)
        assert done.code == 0, done.err
    assert (set(gateway.jobs), set(other.jobs)) == ({"job-identity"}, {"job-wide"})
    listed = await run("jobs", "list", "--target", target)
    here, there = listed.out.split("# cell there")
    assert here.startswith("# cell here")
    assert ("job-identity" in here, "job-wide" in there) == (True, True)
    shown = await run("jobs", "show", "job-wide", "--target", f"{target}:there")
    assert "wide" in shown.out
    refused = await run("jobs", "show", "job-wide", "--target", target)
    assert refused.code == 1
    assert f"needs one: write {target}:here" in refused.err


async def test_cell_that_cannot_be_reached_does_not_hide_the_others(
    gateway: FakeGateway, tmp_path: Path, unreachable: str, run: RunCommand
) -> None:
    target = map_of(tmp_path / "cells.toml", gateway.address, unreachable)
    done = await run("workers", "--json", "--target", target)
    assert done.code == 1
    assert [worker["id"] for worker in json.loads(done.out)["here"]] == ["nano"]
    assert done.err.startswith(f"cell there: cannot connect to {unreachable}")
