"""Text for people."""

import sys

import pytest

from synergai.runtime.text import pip_install


@pytest.mark.parametrize("extras", ["tensorflow", "engines,tensorflow"])
def test_tensorflow_is_not_advised_where_it_has_no_wheel(
    extras: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 9))
    assert f"WHEEL[{extras}]" in pip_install(extras)
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    assert "no wheel for Python 3.14" in pip_install(extras)
    assert "WHEEL[engines]" in pip_install("engines")
