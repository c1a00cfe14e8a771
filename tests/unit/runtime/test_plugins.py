"""Named implementations, made with an operator's options."""

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


def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'plain' has no option 'colour'; there are none"):
        POLICIES.make("plain", {"colour": "red"})


def test_options_reach_the_implementation() -> None:
    assert POLICIES.make("rich", {"gain": "0.5"}) is not None
    with pytest.raises(InvalidInput, match="are numbers"):
        POLICIES.make("rich", {"gain": "much"})


def test_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"nothing called 'odd'; there are: .*plain"):
        POLICIES.make("odd", {})
