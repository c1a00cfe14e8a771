"""Many queries at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, Final

import grpc
import pytest

from synergai.client.streaming import InferResult, answer_all
from synergai.errors import InvalidInput, Unavailable
from tests.waiting import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from synergai.client.streaming import Inputs

INPUT_ERRORS: Final = (
    InvalidInput("the inputs are broken"),
    Unavailable("another gateway is"),
    grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()),
    asyncio.CancelledError(),
    asyncio.InvalidStateError(),
    concurrent.futures.CancelledError(),
    GeneratorExit(),
    KeyboardInterrupt(),
    SystemExit(),
)


@pytest.mark.timeout(15)
@pytest.mark.parametrize("error", INPUT_ERRORS, ids=lambda error: type(error).__name__)
async def test_error_of_the_inputs_is_raised_after_the_results_of_those_before_it(
    error: BaseException,
) -> None:
    async def inputs() -> AsyncIterator[Inputs]:
        yield {}
        raise error

    async def answer(_: Inputs) -> InferResult:
        await asyncio.sleep(0)
        return InferResult({})

    results = answer_all(inputs(), answer, window=4)
    assert (await anext(results)).error is None
    with pytest.raises(type(error)) as failure:
        await anext(results)
    assert failure.value is error


async def test_result_is_yielded_while_the_next_input_is_awaited_and_leaving_ends_the_others() -> (
    None
):
    ended: list[str] = []

    async def inputs() -> AsyncIterator[Inputs]:
        yield {"x": 1}
        yield {"x": 2}
        await asyncio.Event().wait()

    async def answer(values: Inputs) -> InferResult:
        try:
            await (turns() if values["x"] == 1 else asyncio.Event().wait())
        finally:
            ended.append(str(values["x"]))
        return InferResult({})

    results = answer_all(inputs(), answer, window=4)
    assert (await anext(results)).error is None
    await results.aclose()
    assert ended == ["1", "2"]
