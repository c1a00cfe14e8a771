"""The rules of the commands that load and unload engines, run as a user runs them."""

from __future__ import annotations

from typing import Any


async def test_an_engine_is_unloaded_and_loaded(gateway: Any, run: Any) -> None:
    ran = await run("engines", "unload", "identity", "--target", gateway.address)
    assert (ran.code, ran.out, ran.err) == (0, "identity is unloaded\n", "")
    assert gateway.unloaded == {"identity"}
    ran = await run("engines", "load", "identity", "--target", gateway.address)
    assert (ran.code, ran.out, ran.err) == (0, "identity is loaded\n", "")
    assert gateway.unloaded == set()


async def test_an_engine_that_cannot_be_loaded_is_one_line_and_exit_code_1(
    gateway: Any, run: Any
) -> None:
    ran = await run("engines", "load", "broken", "--target", gateway.address)
    assert (ran.code, ran.out, ran.err) == (1, "", "error: the model file is truncated\n")
