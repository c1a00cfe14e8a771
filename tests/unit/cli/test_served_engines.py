"""Output of ``synergai engines rollout``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.cli import served_engines
from synergai.client.version_policy import VersionFigures, VersionPolicy

if TYPE_CHECKING:
    import pytest


def test_the_mean_of_slow_requests_is_readable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = VersionFigures(
        version="1",
        in_service=True,
        reason="",
        prepared=True,
        requests=2,
        errors=0,
        mean_s=1.42,
        queries=2,
        labelled=0,
        correct=0,
    )
    policy = VersionPolicy(
        engine="a", base="1", target="", share=0.0, reason="", versions=(figures,)
    )
    monkeypatch.setattr(served_engines, "call_gateway", lambda *_: policy)
    served_engines.rollout("a")
    assert " 1.42 s " in capsys.readouterr().out
