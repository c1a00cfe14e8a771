"""Choice of the file of each variant of an engine that is in service.

The rules are those by which the catalogue chooses among engines, for each variant on its own: a
worker whose file of a variant differs does not use that variant, and serves the others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gateway.fleet.descriptions import file_difference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gateway.fleet.descriptions import Offer
    from synergai.domain import EngineName, WorkerId


class VariantConflict(NamedTuple):
    """A variant that a worker does not use, because its file is not the one in service.

    Attributes:
        digest: SHA-256 of the worker's file, in hexadecimal digits.
        in_service: that of the file in service.
    """

    worker_id: WorkerId
    engine: EngineName
    variant: str
    digest: str
    in_service: str

    @property
    def difference(self) -> str:
        """How the worker's file differs, for people."""
        return file_difference(self.in_service, self.digest)


class _Copy(NamedTuple):
    """A variant as a worker offers it; see `Offer`."""

    digest: str
    trusted: bool
    any_file: bool


class VariantFiles:
    """The files of one engine's variants.

    Args:
        digests: digest of the file in service, by variant.
        holders: workers that have this file, by variant.

    Attributes:
        digests: as given, and changed by `resolve`.
        changed: whether the last `resolve` changed a digest, or a file gained a worker.
    """

    def __init__(
        self,
        digests: Mapping[str, str] | None = None,
        holders: Mapping[str, Iterable[WorkerId]] | None = None,
    ) -> None:
        self.digests: dict[str, str] = dict(digests or {})
        self.changed = False
        self._holders: dict[str, dict[WorkerId, None]] = {
            name: dict.fromkeys((holders or {}).get(name, ())) for name in self.digests
        }

    def lacking(self, workers: Collection[WorkerId]) -> dict[str, tuple[WorkerId, ...]]:
        """Return which of some workers do not have the file in service, by variant."""
        lacking = {
            name: tuple(each for each in workers if each not in holders)
            for name, holders in self._holders.items()
        }
        return {name: those for name, those in lacking.items() if those}

    def resolve(
        self,
        engine: EngineName,
        offers: Mapping[WorkerId, Offer],
        counting: Collection[WorkerId],
        *,
        provisional: bool,
    ) -> list[VariantConflict]:
        """Decide which files are in service; return the variants that are not used.

        Args:
            engine: the engine.
            offers: offers of the engine that can be used otherwise, those of the longest connected
                workers first.
            counting: workers that count as having their last files, connected or not.
            provisional: whether no client has relied on the engine yet.
        """
        self.changed = False
        copies: dict[str, dict[WorkerId, _Copy]] = {}
        for worker_id, offer in offers.items():
            for each in offer.engine.variants:
                copy = _Copy(each.digest, offer.trusted, offer.any_file)
                copies.setdefault(each.name, {})[worker_id] = copy
        conflicts: list[VariantConflict] = []
        for name in dict.fromkeys((*self.digests, *copies)):
            offered = copies.get(name, {})
            holders = self._holders.setdefault(name, {})
            for worker_id in list(holders):
                if worker_id not in counting or (worker_id in offers and worker_id not in offered):
                    del holders[worker_id]
            if offered:
                self._choose(name, offered, provisional=provisional)
            elif not holders:
                del self._holders[name]
                self.digests.pop(name, None)
                continue
            for worker_id, copy in offered.items():
                if not copy.any_file and file_difference(self.digests[name], copy.digest):
                    self._holders[name].pop(worker_id, None)
                    conflicts.append(
                        VariantConflict(worker_id, engine, name, copy.digest, self.digests[name])
                    )
                elif worker_id not in self._holders[name]:
                    self._holders[name][worker_id] = None
                    self.changed = True
        return conflicts

    def _choose(self, name: str, copies: Mapping[WorkerId, _Copy], *, provisional: bool) -> None:
        """Set which file of a variant is in service; compare `EngineOffers._choose`."""
        current = self.digests.get(name, "")  # without a known digest, any file matches
        holders = self._holders[name]
        trusted = [copy for copy in copies.values() if copy.trusted]
        candidates = trusted or list(copies.values())
        if current and (trusted or not provisional):
            if not all(file_difference(current, copy.digest) for copy in candidates):
                return
            if not trusted:
                changed = [copy for worker_id, copy in copies.items() if worker_id in holders]
                for worker_id in copies.keys() & holders.keys():
                    del holders[worker_id]
                if holders:
                    return
                candidates = changed or candidates
        known = [copy.digest for copy in candidates if copy.digest]
        # A trusted worker that does not know its file's digest decides nothing.
        counts = Counter(known or [copy.digest for copy in copies.values() if copy.digest])
        chosen = max(counts, key=counts.__getitem__, default="")  # of equal ones, the first
        if chosen != current or name not in self.digests:
            self.digests[name] = chosen
            self._holders[name] = {}
            self.changed = True
