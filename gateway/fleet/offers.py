"""Choice among the descriptions of one engine that workers offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.fleet.descriptions import (
    EngineConflict,
    Established,
    all_variants,
    most_common,
)
from gateway.fleet.sample_sets import other_samples
from gateway.fleet.variant_files import VariantFiles
from synergai.domain import LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.fleet.descriptions import Description, Offer
    from gateway.fleet.sample_sets import OtherSamples
    from gateway.fleet.variant_files import VariantConflict
    from synergai.domain import Engine, EngineName, WorkerId

_MAX_HOLDERS: Final = 256
"""Workers remembered per description, of which absent ones may never return."""


class EngineOffers:
    """The offers of one engine; `Catalogue` has the rules by which one is chosen.

    Args:
        name: name of the engine.
        established: its description that was established in an earlier run; None without one.

    Attributes:
        by_worker: offer of each connected worker, those of the longest connected workers first.
        description: the description in service; None if there is none.
        provisional: whether no client has asked for the description yet.
        engine: the engine that clients see; None if no worker serves it.
        conflicts: offers that differ from the description.
        variant_conflicts: variants that workers offer with another file.
        other_samples: sample sets that differ from those of most workers.
        changed: whether the last `resolve` changed what `established` returns.
    """

    def __init__(self, name: EngineName, established: Established | None = None) -> None:
        self.by_worker: dict[WorkerId, Offer] = {}
        self.description: Description | None = None
        self.provisional = False
        self.engine: Engine | None = None
        self.conflicts: list[EngineConflict] = []
        self.variant_conflicts: list[VariantConflict] = []
        self.other_samples: list[OtherSamples] = []
        self.changed = False
        self._name = name
        self._holders: dict[WorkerId, None] = {}
        self._files: VariantFiles | None = None
        if established is not None:
            self.description = established.description
            self._holders = dict.fromkeys(established.holders)
            if established.description.variants:
                self._files = _established_files(established)

    @property
    def is_pending(self) -> bool:
        """Whether a worker is still inspecting the engine."""
        return any(offer.engine.pending for offer in self.by_worker.values())

    def established(self) -> Established | None:
        """Return the record of the description in service; None if there is none."""
        if self.description is None:
            return None
        while len(self._holders) > _MAX_HOLDERS:
            del self._holders[next(iter(self._holders))]
        lacking = {} if self._files is None else self._files.lacking(self._holders)
        return Established(
            description=self.description, holders=tuple(self._holders), lacking=lacking
        )

    def withdraw(self, worker_id: WorkerId, *, holds: bool) -> None:
        """Remove the offer of a worker.

        Args:
            worker_id: the worker.
            holds: whether the worker still counts as serving the engine.
        """
        del self.by_worker[worker_id]
        if not holds:
            self._holders.pop(worker_id, None)

    def release_absent(self) -> None:
        """Stop counting absent workers as serving the engine."""
        for worker_id in self._holders.keys() - self.by_worker.keys():
            del self._holders[worker_id]

    def forget_description(self) -> None:
        """Forget the description in service; the next `resolve` chooses another one."""
        self.description = self._files = None
        self._holders = {}

    def resolve(self, *, keep_absent: bool) -> dict[WorkerId, Engine]:
        """Choose the description in service; return the engine as each worker may serve it.

        Args:
            keep_absent: whether absent workers count as serving what they served last.
        """
        offers = {each: offer for each, offer in self.by_worker.items() if not offer.engine.fault}
        self._join_variants(offers)
        self._choose(self._as_variants(offers), keep_absent=keep_absent)
        self._join_variants(offers)
        offers = self._as_variants(offers)
        holders = set(self._holders)
        differences = self._compare(offers)
        self._compare_variants(offers, differences, keep_absent=keep_absent)
        resolved = {each: offer.engine for each, offer in self.by_worker.items()}
        for conflict in self.variant_conflicts:
            resolved[conflict.worker_id] = _without(resolved[conflict.worker_id], conflict)
        for worker_id, offer in offers.items():
            if offer is not self.by_worker[worker_id]:
                [variant] = offer.engine.variants
                resolved[worker_id] = replace(resolved[worker_id], file_variant=variant.name)
        for worker_id, difference in differences.items():
            fault = f"it differs from the engine of this name in service: {difference}"
            resolved[worker_id] = replace(self.by_worker[worker_id].engine, fault=fault)
        self._set_conflicts(offers, differences)
        serving = [each for each in offers if each not in differences]
        self.other_samples = other_samples({each: resolved[each] for each in serving})
        for differing in self.other_samples:
            there = differing.worker_id
            resolved[there] = replace(resolved[there], other_samples=differing.text)
        gained = not holders.issuperset(self._holders)
        files_changed = self._files is not None and self._files.changed
        self.changed = not self.provisional and (gained or files_changed)
        self._set_engine([resolved[each] for each in serving])
        if not self.by_worker and self.provisional:  # no client knows it
            self.provisional = False
            self.forget_description()
        return resolved

    def _choose(self, offers: dict[WorkerId, Offer], *, keep_absent: bool) -> None:
        """Set the description in service."""
        current = self.description
        trusted = [offer for offer in offers.values() if offer.trusted]
        candidates = trusted or list(offers.values())
        if current is not None and (trusted or not self.provisional):
            # Not by `Offer.difference`: a listed file goes before one that is not.
            if not all(current.difference(offer.engine) for offer in candidates):
                return
            if not trusted:
                changed = self._give_up(offers, keep_absent=keep_absent)
                if self._holders:
                    return
                candidates = changed or candidates
        if not candidates:
            return
        chosen = most_common(candidates)
        if current is None or chosen != current.without_files:
            self.forget_description()
            self.provisional = True
            self.description = chosen

    def _join_variants(self, offers: Mapping[WorkerId, Offer]) -> None:
        """Make the single file in service a variant, if an offer has it among its variants."""
        if self.description is None:
            return
        for offer in offers.values():
            joined = self.description.with_variants(offer.engine)
            if joined is not None:
                self.description = joined
                self._files = VariantFiles(
                    dict(joined.variants),
                    {name: list(self._holders) for name, _ in joined.variants},
                )
                return

    def _as_variants(self, offers: dict[WorkerId, Offer]) -> dict[WorkerId, Offer]:
        """Return the offers, those of a single file that is a variant in service as variants."""
        description = self.description
        pairs = [
            (each.name, each.digest) for offer in offers.values() for each in offer.engine.variants
        ]
        if description is not None:
            if not description.variants:
                return offers
            pairs = [*description.variants, *pairs]
        names: dict[str, str] = {}
        for name, digest in pairs:
            if digest:
                names.setdefault(digest, name)
        return {each: offer.as_variant(names) for each, offer in offers.items()}

    def _give_up(self, offers: dict[WorkerId, Offer], *, keep_absent: bool) -> list[Offer]:
        """Let workers that offer something else give up the description; return what they offer.

        A worker that reports a fault gives it up as well, unless absent workers count.
        """
        changed = [offer for worker_id, offer in offers.items() if worker_id in self._holders]
        for worker_id, offer in self.by_worker.items():
            if worker_id in offers or not (keep_absent or offer.engine.pending):
                self._holders.pop(worker_id, None)
        return changed

    def _compare(self, offers: dict[WorkerId, Offer]) -> dict[WorkerId, str]:
        """Let workers whose offer is like the description hold it; return how the others differ."""
        differences: dict[WorkerId, str] = {}
        if self.description is None:
            return differences
        for worker_id, offer in offers.items():
            if difference := offer.difference(self.description):
                differences[worker_id] = difference
                self._holders.pop(worker_id, None)
            else:
                self._holders[worker_id] = None
        return differences

    def _compare_variants(
        self,
        offers: dict[WorkerId, Offer],
        differences: dict[WorkerId, str],
        *,
        keep_absent: bool,
    ) -> None:
        """Choose the file of each variant, and set the variants that workers do not use.

        Workers that can use none of them are added to `differences`.
        """
        self.variant_conflicts = []
        description = self.description
        if description is None or not description.variants:
            self._files = None
            return
        faulty = {
            worker_id
            for worker_id, offer in self.by_worker.items()
            if offer.engine.fault and not (keep_absent or offer.engine.pending)
        }
        files = self._files = self._files or VariantFiles()
        self.variant_conflicts = files.resolve(
            self._name,
            {each: offer for each, offer in offers.items() if each not in differences},
            self._holders.keys() - faulty,
            provisional=self.provisional,
        )
        by_worker: dict[WorkerId, list[VariantConflict]] = {}
        for conflict in self.variant_conflicts:
            by_worker.setdefault(conflict.worker_id, []).append(conflict)
        for worker_id, conflicts in by_worker.items():
            if len(conflicts) == len(offers[worker_id].engine.variants):
                first = conflicts[0]
                differences[worker_id] = f"variant {first.variant} is {first.difference}"
                self._holders.pop(worker_id, None)
        self.description = description.with_files(files.digests)

    def _set_conflicts(
        self, offers: dict[WorkerId, Offer], differences: dict[WorkerId, str]
    ) -> None:
        in_service = "" if self.description is None else self.description.digest
        self.conflicts = [
            EngineConflict(
                worker_id, self._name, offers[worker_id].engine.digest, in_service, difference
            )
            for worker_id, difference in differences.items()
        ]

    def _set_engine(self, served: list[Engine]) -> None:
        """Set the engine that clients see, given those of the workers that serve it."""
        if not served or self.description is None:
            self.engine = None
            return
        backend = self.description.backend
        # Those of a single file, which is one of the variants, do not have the others.
        served = [each for each in served if each.variants] or served
        engine = next((each for each in served if each.backend == backend), served[0])
        if engine.variants:
            engine = replace(engine, variants=all_variants([engine, *served]))
        self.engine = engine


def _established_files(established: Established) -> VariantFiles:
    """Return the files of an engine's variants as they were established."""
    digests = {name: digest for name, digest in established.description.variants if name}
    holders = {
        name: [
            each for each in established.holders if each not in established.lacking.get(name, ())
        ]
        for name in digests
    }
    return VariantFiles(digests, holders)


def _without(engine: Engine, conflict: VariantConflict) -> Engine:
    """Return an engine without a variant whose file is not the one in service."""
    variants = tuple(each for each in engine.variants if each.name != conflict.variant)
    reason = f"it differs from the variant of this name in service: {conflict.difference}"
    return replace(
        engine,
        variants=variants,
        digest=variants[0].digest if variants else engine.digest,
        left_out=(*engine.left_out, LeftOut(conflict.variant, reason)),
    )
