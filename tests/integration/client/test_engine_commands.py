"""``synergai engines load``, ``unload`` and ``inspect`` with a gateway."""

import json

from tests.integration.client.conftest import FakeGateway, RunCommand


async def test_engine_is_unloaded_and_loaded(gateway: FakeGateway, ask: RunCommand) -> None:
    result = await ask("engines", "unload", "identity")
    assert (result.code, result.out, result.err) == (0, "identity is unloaded\n", "")
    assert gateway.unloaded == {"identity"}
    result = await ask("engines", "load", "identity")
    assert (result.code, result.out, result.err) == (0, "identity is loaded\n", "")
    assert gateway.unloaded == set()


async def test_load_failure_prints_one_line_and_exits_1(ask: RunCommand) -> None:
    result = await ask("engines", "load", "broken")
    assert (result.code, result.out, result.err) == (1, "", "error: the model file is truncated\n")


async def test_served_engine_is_inspected_without_its_model(
    gateway: FakeGateway, run: RunCommand
) -> None:
    where = ("--target", gateway.address)
    shown = await run("engines", "inspect", "identity", *where)
    assert "x  FP32 [-1]" in shown.out
    facts = json.loads((await run("engines", "inspect", "identity", *where, "--json")).out)
    assert facts["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    missing = await run("engines", "inspect", "unknown", *where)
    assert (missing.code, missing.out) == (1, "")
