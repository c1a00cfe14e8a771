"""The front of QPS against QPS per watt: configurations that no other one beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def front(items: Iterable[T], figures: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the items that no other one exceeds in one figure and equals in the other.

    Args:
        figures: two figures of an item; more is better.

    Returns:
        In descending order of the first figure; of equal items, the first one.
    """
    chosen: list[T] = []
    most = float("-inf")
    for item in sorted(items, key=lambda each: figures(each), reverse=True):
        second = figures(item)[1]
        if second > most:
            chosen.append(item)
            most = second
    return chosen
