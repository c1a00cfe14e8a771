"""``synergai engines load`` and ``unload``, run as processes."""

from tests.integration.client.conftest import FakeGateway, RunCommand


async def test_engine_is_unloaded_and_loaded(gateway: FakeGateway, run: RunCommand) -> None:
    result = await run("engines", "unload", "identity", "--target", gateway.address)
    assert (result.code, result.out, result.err) == (0, "identity is unloaded\n", "")
    assert gateway.unloaded == {"identity"}
    result = await run("engines", "load", "identity", "--target", gateway.address)
    assert (result.code, result.out, result.err) == (0, "identity is loaded\n", "")
    assert gateway.unloaded == set()


async def test_load_failure_prints_one_line_and_exits_1(
    gateway: FakeGateway, run: RunCommand
) -> None:
    result = await run("engines", "load", "broken", "--target", gateway.address)
    assert (result.code, result.out, result.err) == (1, "", "error: the model file is truncated\n")
