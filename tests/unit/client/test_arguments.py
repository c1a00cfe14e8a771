"""Arguments that are refused before the gateway is called."""

from typing import Any

import pytest

import synergai

CLIENT: Any = synergai.Client("127.0.0.1:1")  # the type checker would refuse the calls below


async def test_misspelt_keyword_of_a_call_is_refused() -> None:
    with pytest.raises(TypeError, match="'deadlin'"):
        await CLIENT.infer("echo", {}, deadlin=1)
    with pytest.raises(TypeError, match="'qoss'"):
        await CLIENT.submit("echo", queries=1, qoss=1)
    with pytest.raises(TypeError, match="'tenant'"):
        await anext(CLIENT.stream("echo", [], tenant="a"))


@pytest.mark.parametrize("kind", [synergai.Client, synergai.SyncClient])
def test_misspelt_option_of_a_client_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="'tokn'"):
        kind("127.0.0.1:1", tokn="secret")


VERSIONS = (-1, 0, 1 << 31, 10**20)


@pytest.mark.parametrize("version", VERSIONS)
async def test_version_that_no_store_can_have_is_refused(version: int) -> None:
    async with synergai.Client("127.0.0.1:1") as client:
        for call in (
            client.push_engine("echo", version, b"", {}),
            client.place_engine("echo", version, ()),
            client.remove_engine("echo", version),
        ):
            with pytest.raises(synergai.InvalidInput, match="a version must be a number from 1"):
                await call
