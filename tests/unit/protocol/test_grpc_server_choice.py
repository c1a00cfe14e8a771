"""Which gRPC server serves clients."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError
from typing import NoReturn

import pytest

from synergai.errors import InvalidInput
from synergai.protocol.native import choice
from synergai.protocol.native.choice import is_native


def absent(_package: str) -> NoReturn:
    raise PackageNotFoundError


def other(_package: str) -> str:
    return "9.9.9"


def test_native_server_is_used_where_it_is_chosen_and_installed() -> None:
    assert not is_native("grpcio")
    assert is_native("native")
    assert is_native("auto")


@pytest.mark.parametrize("installed", [absent, other])
def test_without_the_tested_version_automatic_choice_is_grpcio(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: object
) -> None:
    monkeypatch.setattr(choice, "version", installed)
    caplog.set_level(logging.INFO)
    assert not is_native("auto")
    assert len(caplog.records) == 1
    with pytest.raises(InvalidInput, match=r"needs pygrpc-native 0\.5\.0"):
        is_native("native")
