"""Counts with their nouns."""

import pytest

from synergai.runtime.text import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "entry", "1 entry"),
        (0, "entry", "0 entries"),
        (2, "day", "2 days"),
        (1, "unfinished job", "1 unfinished job"),
        (1200, "thread", "1,200 threads"),
    ],
)
def test_noun_agrees_with_its_count(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
