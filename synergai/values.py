"""Immutable values that are cheap to make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(*, kw_only: bool = False, order: bool = False) -> Callable[[type[T]], type[T]]:
    """A dataclass with slots that is never changed; equal and hashed by its fields.

    What every request makes many of is declared so. A dataclass that is frozen at run time sets
    each field by a call of ``object.__setattr__``, and takes three times as long to make; here
    the type checker alone sees to it that nobody changes one.

    Args:
        kw_only: fields are given by name only.
        order: compared like tuples, too.
    """
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only, order=order)
