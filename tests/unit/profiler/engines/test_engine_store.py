"""``synergai engines push`` without a version, or without settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from profiler.engines.served_engines import app, first_version
from synergai.cli.gateway_client import GatewayAddress
from synergai.client.client import Client
from synergai.errors import InvalidInput


class FakeClient:
    """Knows what the gateway's store has, and the engines of one worker."""

    def __init__(self, stored: dict[str, int], served: tuple[str, ...] = ()) -> None:
        self._stored = stored
        self._served = served

    async def stored_engines(self) -> SimpleNamespace:
        engines = [
            SimpleNamespace(engine=name, version=version) for name, version in self._stored.items()
        ]
        return SimpleNamespace(engines=engines)

    async def workers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(engines=[SimpleNamespace(name=name) for name in self._served])]


async def version_of(client: FakeClient, name: str) -> int:
    return await first_version(cast("Client", client), name)


async def test_a_new_engine_is_version_1() -> None:
    assert await version_of(FakeClient({"other": 3}, ("another/2",)), "resnet50") == 1


async def test_a_known_engine_needs_a_version_and_the_error_names_those_that_exist() -> None:
    client = FakeClient({"resnet50": 2}, ("resnet50", "resnet50/5"))
    with pytest.raises(InvalidInput, match=r"already: 1, 2, 5; .* --version 6"):
        await version_of(client, "resnet50")


def test_a_push_without_settings_says_what_that_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = SimpleNamespace(digest="abc", workers={})
    monkeypatch.setattr(GatewayAddress, "call", lambda *_: stored)
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "engine.toml").write_text("max_batch = 8")

    def pushed(path: Path) -> str:
        arguments = ["push", str(path), "--name", "resnet50", "--version", "2"]
        return CliRunner().invoke(app, arguments, catch_exceptions=False).stderr

    assert "without an engine.toml: max_batch is 1" in pushed(tmp_path / "model.onnx")
    assert "max_batch" not in pushed(tmp_path)
