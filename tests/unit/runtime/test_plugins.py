"""Registry of named implementations."""

from __future__ import annotations

import pytest

from synergai.errors import InvalidInput
from synergai.runtime.plugins import Registry

POLICIES = Registry[object](
    "synergai.policies",
    {
        "plain": "synergai.scheduling.policies.fifo:Fifo",
        "rich": "synergai.scheduling.policies.malleable.policy:Malleable",
    },
)


def test_unknown_option_is_rejected_by_name() -> None:
    with pytest.raises(InvalidInput, match="'plain' has no option 'colour'; it takes none"):
        POLICIES.create("plain", {"colour": "red"})


def test_options_reach_the_implementation() -> None:
    assert POLICIES.create("rich", {"gain": "0.5"}) is not None
    with pytest.raises(InvalidInput, match="are numbers"):
        POLICIES.create("rich", {"gain": "much"})


def test_unknown_name_is_rejected_with_the_available_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'odd' is not in .*; available: .*plain"):
        POLICIES.create("odd", {})
