"""Unique names of inputs."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from synergai.runtime.text import encodable

_MAX_CHARACTERS: Final = 1024
_DIGEST_BYTES: Final = 8


class UniqueNames:
    """Makes names unique, with a few bytes of memory for each.

    A name that was used before gets the suffix ``~2``, ``~3`` and so on, in the order of the
    inputs, so that the same inputs always get the same names.
    """

    def __init__(self) -> None:
        # Digests, because there may be millions of names. Two names with the same one, which are
        # not to be expected among fewer than a billion, would cause a needless suffix only.
        self._seen: set[int] = set()
        # The next suffix of names that were used more than once: many inputs may have the same.
        self._numbers: dict[int, int] = {}

    def make(self, name: str) -> str:
        """Return `name` as valid text, or a variant of it that no call returned before."""
        name = clean_name(name)
        first = digest = _digest(name)
        if first not in self._seen:
            self._seen.add(first)
            return name
        number = self._numbers.get(first, 1)
        while digest in self._seen:
            number += 1
            unique = f"{name}~{number}"
            digest = _digest(unique)
        self._numbers[first] = number
        self._seen.add(digest)
        return unique


def _digest(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest(), "little")


def clean_name(name: str) -> str:
    """Return a name as text that UTF-8 can encode, of bounded length; of a long one, its end."""
    name = encodable(name)
    return name if len(name) <= _MAX_CHARACTERS else f"…{name[1 - _MAX_CHARACTERS :]}"
