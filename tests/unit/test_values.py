from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from synergai.values import value


@value(kw_only=True, order=True)
class Size:
    width: int
    height: int = 1


def test_values_are_equal_hashed_and_ordered_by_their_fields() -> None:
    assert Size(width=2) == Size(width=2, height=1) != Size(width=2, height=3)
    assert len({Size(width=2), Size(width=2), Size(width=3)}) == 2
    assert Size(width=2, height=9) < Size(width=3)


def test_value_has_no_other_attributes_than_its_fields() -> None:
    with pytest.raises(AttributeError):
        Size(width=1).depth = 2  # type: ignore[attr-defined]  # the rule


def test_value_is_frozen_to_the_type_checker_alone() -> None:
    size = Size(width=1)
    size.width = 2  # type: ignore[misc]  # mypy refuses an ignore that it does not need
    assert size.width == 2


def test_value_outlives_pickling_and_replacement() -> None:
    size = replace(Size(width=2), height=7)
    assert pickle.loads(pickle.dumps(size)) == size == Size(width=2, height=7)
