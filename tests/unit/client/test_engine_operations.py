"""Checks of operations on engines before the gateway is called."""

from pathlib import Path

import pytest

import synergai
from synergai.models.manifest import pack

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


@pytest.mark.parametrize(("name", "version"), [("a b", 1), *(("echo", each) for each in VERSIONS)])
def test_files_are_not_read_for_a_name_or_version_that_is_not_valid(
    tmp_path: Path, name: str, version: int
) -> None:
    with pytest.raises(synergai.InvalidInput, match=r"not a valid engine name|a version must be"):
        pack(tmp_path / "missing.onnx", name, version)
