"""Commands on the engines of a gateway, and on its store."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from profiler.engines import served_engines
from profiler.engines.served_engines import app, first_version
from synergai.cli.gateway_client import GatewayAddress
from synergai.client.client import Client
from synergai.client.fleet import VersionFigures, VersionPolicy
from synergai.errors import InvalidInput


def rollout(**options: str) -> None:
    served_engines.rollout(target="h:1", engine="a", **options)


def a_policy(*loaded: bool, base: str = "", target: str = "", reason: str = "") -> VersionPolicy:
    """Return the state of versions from 1 on, some of which are loaded."""
    versions = tuple(
        VersionFigures(
            version=str(number),
            in_service=True,
            reason="",
            prepared=each,
            loaded=each,
            requests=2,
            errors=0,
            mean_s=1.42,
            queries=2,
            labelled=0,
            correct=0,
        )
        for number, each in enumerate(loaded, 1)
    )
    return VersionPolicy(
        engine="a", base=base, target=target, share=0.0, reason=reason, versions=versions
    )


@pytest.mark.parametrize(
    ("policy", "shown", "hidden"),
    [
        (a_policy(True, base="1"), " 1.42 s ", "not loaded"),
        (a_policy(True, False), ": version 2 once it is loaded, 1 until then", "rolled back"),
        (a_policy(True, True), "all requests: version 2", "not loaded"),
        (
            a_policy(True, True, base="1", target="2", reason="it differs"),
            "version 2 gets 0% of requests, version 1 the others, as it differs",
            "rolled back",
        ),
    ],
    ids=["mean of slow requests", "higher one not loaded", "higher one loaded", "waiting"],
)
def test_state_of_a_rollout_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    policy: VersionPolicy,
    shown: str,
    hidden: str,
) -> None:
    monkeypatch.setattr(GatewayAddress, "call", lambda *_: policy)
    rollout()
    output = capsys.readouterr().out
    assert shown in output
    assert hidden not in output


@pytest.mark.parametrize(
    ("share", "text"),
    [
        ("20", "'20' needs a percent sign: 20%"),
        ("0.2", "'0.2' needs a percent sign: 0.2% or 20%"),
        ("110%", "'110%' is not a percentage from 0% to 100%"),
        ("a few", "'a few' is not a percentage from 0% to 100%"),
    ],
)
def test_share_that_is_no_percentage_is_refused_with_what_to_write(share: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        rollout(to="2", share=share)


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
