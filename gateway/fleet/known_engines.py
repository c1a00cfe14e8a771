"""Names of the engines that any worker has ever had, with their versions."""

from __future__ import annotations

from bisect import insort
from difflib import get_close_matches
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Final

from synergai.errors import EngineNotFound
from synergai.names import by_version, is_stage, split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from synergai.domain import EngineName

_MAX_COMPARED: Final = 200
_MAX_COMPARED_LENGTH: Final = 100
"""Names, and characters of a name, that are compared to suggest engines for an unknown one."""


class KnownEngines:
    """The known engines, in the order in which they became known."""

    def __init__(self, suggests: Callable[[str], bool] = lambda _: True) -> None:
        self._engines: dict[EngineName, None] = {}
        self._versions: dict[str, list[EngineName]] = {}
        self._suggests = suggests

    def __contains__(self, engine: object) -> bool:
        return engine in self._engines

    def __iter__(self) -> Iterator[EngineName]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    def add(self, engine: EngineName) -> None:
        """Add an engine that is not known."""
        self._engines[engine] = None
        versions = self._versions.setdefault(split_version(engine)[0], [])
        insort(versions, engine, key=by_version)

    def remove(self, engine: EngineName) -> None:
        """Remove a known engine."""
        del self._engines[engine]
        name = split_version(engine)[0]
        self._versions[name].remove(engine)
        if not self._versions[name]:
            del self._versions[name]

    def versions_of(self, name: str) -> Sequence[EngineName]:
        """Return the known versions of an engine, in increasing order; empty if there are none."""
        return self._versions.get(name, ())

    def not_found(self, name: str, is_served: Callable[[EngineName], bool]) -> EngineNotFound:
        """Return the error for an engine that is not known; it suggests names, or served ones."""
        # Bounded: any client may ask for any name.
        first = islice(filterfalse(is_stage, sorted(self._versions)), _MAX_COMPARED)
        known = list(filter(self._suggests, first))
        served = [each for each in known if any(map(is_served, self._versions[each]))]
        return EngineNotFound(name, get_close_matches(name[:_MAX_COMPARED_LENGTH], known), served)
