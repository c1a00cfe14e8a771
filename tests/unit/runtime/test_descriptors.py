"""Limit of open file descriptors."""

import resource
from unittest.mock import Mock

import pytest

from synergai.runtime.resources import MAX_DESCRIPTORS, raise_descriptor_limit

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, MAX_DESCRIPTORS),
        (1024, UNLIMITED, MAX_DESCRIPTORS),
        (4096, 4096, None),
        (1 << 20, 1 << 20, None),
        (UNLIMITED, UNLIMITED, None),
    ],
)
def test_soft_limit_is_raised_to_the_hard_one_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    setter = Mock()
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", setter)
    raise_descriptor_limit()
    expected = [] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))]
    assert [call.args for call in setter.call_args_list] == expected
