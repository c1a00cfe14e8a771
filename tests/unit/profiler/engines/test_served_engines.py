"""Output of ``synergai engines rollout``, and completion of the names of engines."""

import pytest
import typer

from profiler.engines import served_engines
from synergai.cli import infer
from synergai.cli.gateway_client import GatewayAddress, complete_engine
from synergai.client.fleet import VersionFigures, VersionPolicy
from synergai.errors import InvalidInput, Unavailable


def rollout(**options: str) -> None:
    served_engines.rollout(target="h:1", engine="a", **options)


def figures_of(version: str, *, loaded: bool = True) -> VersionFigures:
    return VersionFigures(
        version=version,
        in_service=True,
        reason="",
        prepared=loaded,
        loaded=loaded,
        requests=2,
        errors=0,
        mean_s=1.42,
        queries=2,
        labelled=0,
        correct=0,
    )


def test_the_mean_of_slow_requests_is_readable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = VersionPolicy(
        engine="a", base="1", target="", share=0.0, reason="", versions=(figures_of("1"),)
    )
    monkeypatch.setattr(GatewayAddress, "call", lambda *_: policy)
    rollout()
    assert " 1.42 s " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loaded", "text"),
    [(False, ": version 2 once it is loaded, 1 until then"), (True, "all requests: version 2")],
)
def test_version_that_answers_until_a_higher_one_is_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], loaded: bool, text: str
) -> None:
    versions = (figures_of("1"), figures_of("2", loaded=loaded))
    policy = VersionPolicy(engine="a", base="", target="", share=0.0, reason="", versions=versions)
    monkeypatch.setattr(GatewayAddress, "call", lambda *_: policy)
    rollout()
    output = capsys.readouterr().out
    assert text in output
    assert ("not loaded" in output) != loaded


def test_version_that_waits_for_a_rollout_is_not_called_rolled_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = (figures_of("1"), figures_of("2"))
    policy = VersionPolicy(
        engine="a", base="1", target="2", share=0.0, reason="it differs", versions=versions
    )
    monkeypatch.setattr(GatewayAddress, "call", lambda *_: policy)
    rollout()
    output = capsys.readouterr().out
    assert "version 2 gets 0% of requests, version 1 the others, as it differs" in output
    assert "rolled back" not in output


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


def test_completion_offers_served_engines_once_and_none_without_a_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = typer.Context(typer.main.get_command(infer.app))
    monkeypatch.setattr(GatewayAddress, "call", lambda *_: {"digits", "digits/2", "resnet"})
    assert complete_engine(context, "di") == ["digits"]

    def unreachable(*_: object) -> None:
        raise Unavailable("no gateway")

    monkeypatch.setattr(GatewayAddress, "call", unreachable)
    assert complete_engine(context, "di") == []
