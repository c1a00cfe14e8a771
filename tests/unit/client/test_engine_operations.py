"""Checks of operations on engines before the gateway is called."""

import pytest

import synergai

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
