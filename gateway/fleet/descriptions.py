"""Names that engines are known by, and which of the offers under a name is in service."""

from __future__ import annotations

from bisect import insort
from difflib import get_close_matches
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import Engine, EngineName, TensorSpec, UnusedVariant, Variant, WorkerId
from synergai.errors import EngineNotFound
from synergai.names import by_version, is_stage, split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

_MAX_COMPARED: Final = 200
_MAX_COMPARED_LENGTH: Final = 100
"""Names, and characters of a name, that are compared to suggest engines for an unknown one."""
DIGEST_SHOWN: Final = 12
"""Characters of a digest that people are shown."""


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
        self._engines[engine] = None
        versions = self._versions.setdefault(split_version(engine)[0], [])
        insort(versions, engine, key=by_version)

    def remove(self, engine: EngineName) -> None:
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


class Description(Struct, frozen=True, kw_only=True):
    """An engine as clients see it, and its files.

    Attributes:
        files: SHA-256 of the file of each variant, in hexadecimal digits; a single file has an
            empty name. An unknown digest is empty, and differs from no other.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocess: str
    postprocess: str
    files: dict[str, str]

    @classmethod
    def of(cls, engine: Engine) -> Self:
        return cls(
            inputs=engine.inputs,
            outputs=engine.outputs,
            preprocess=engine.preprocess,
            postprocess=engine.postprocess,
            files=_files_of(engine),
        )

    def other_files(self, engine: Engine) -> dict[str, str]:
        """Return the files of an engine that are not those of the same name here."""
        return {
            name: digest
            for name, digest in _files_of(engine).items()
            if digest and self.files.get(name, digest) not in ("", digest)
        }

    def difference(self, engine: Engine) -> str:
        """Return how an engine differs; empty if clients may use it, or one of its variants."""
        if interface := self._other_interface(engine):
            return interface
        theirs = _files_of(engine)
        if ("" in theirs) != ("" in self.files):
            return "it has variants" if engine.variants else "it has no variants"
        others = self.other_files(engine)
        if len(others) < len(theirs):
            return ""
        name = next(iter(others))
        return (f"variant {name} is " if name else "") + self.file_difference(name, others[name])

    def file_difference(self, name: str, digest: str) -> str:
        """Return how the file of a variant differs, for people."""
        return f"a file of {_shown(digest)} instead of {self.files[name][:DIGEST_SHOWN]}…"

    def completed(self, engine: Engine) -> Description:
        """Return this description with the files of an engine that it lacks."""
        known = {name: digest for name, digest in self.files.items() if digest}
        return replace(self, files=self.files | _files_of(engine) | known)

    def _other_interface(self, engine: Engine) -> str:
        for name in ("preprocess", "postprocess"):
            ours, theirs = getattr(self, name), getattr(engine, name)
            if ours != theirs:
                return f"{name} {theirs!r} instead of {ours!r}"
        # Clients name tensors: their order may depend on the runtime.
        for name in ("inputs", "outputs"):
            if set(getattr(self, name)) != set(getattr(engine, name)):
                return f"other {name}"
        return ""


def _files_of(engine: Engine) -> dict[str, str]:
    return {each.name: each.digest for each in engine.variants} or {"": engine.digest}


def _shown(digest: str) -> str:
    return f"SHA-256 {digest[:DIGEST_SHOWN]}…"


class EngineConflict(NamedTuple):
    """An engine of a worker, or one variant of it, that is not used because it differs."""

    worker_id: WorkerId
    engine: EngineName
    variant: str
    digest: str
    in_service: str
    difference: str


class CommittedDescription(Struct, frozen=True, kw_only=True):
    """A description that clients have relied on, and the workers that serve or served it."""

    description: Description
    holders: tuple[WorkerId, ...]


_MAX_HOLDERS: Final = 256
"""Workers remembered per description; absent ones may never return."""


class EngineOffers:
    """The offers of one engine; `Catalogue` has the rule by which one is in service.

    Attributes:
        by_worker: offer of each connected worker, those of the longest connected workers first.
        engine: the engine that clients see; None if no worker serves it.
    """

    def __init__(self, name: EngineName, committed: CommittedDescription | None = None) -> None:
        self.by_worker: dict[WorkerId, Engine] = {}
        self.description = None if committed is None else committed.description
        self.committed = committed is not None
        self.engine: Engine | None = None
        self.conflicts: list[EngineConflict] = []
        self._name = name
        # Workers that serve the description and, once it is committed, those that did.
        self._holders = dict.fromkeys(() if committed is None else committed.holders)

    @property
    def is_pending(self) -> bool:
        """Whether a worker is still inspecting the engine."""
        return any(engine.pending for engine in self.by_worker.values())

    def record(self) -> CommittedDescription | None:
        """Return the record of the description, if it is committed."""
        if self.description is None or not self.committed:
            return None
        while len(self._holders) > _MAX_HOLDERS:
            del self._holders[next(iter(self._holders))]
        return CommittedDescription(description=self.description, holders=tuple(self._holders))

    def withdraw(self, worker_id: WorkerId, *, holds: bool) -> None:
        del self.by_worker[worker_id]
        if not (holds and self.committed):
            self._holders.pop(worker_id, None)

    def forget_description(self) -> None:
        """Forget the description in service; the next `resolve` chooses another one."""
        self.description = None
        self.committed = False
        self._holders = {}

    def resolve(self, stored: Collection[str]) -> dict[WorkerId, Engine]:
        """Choose the description in service; return the engine as each worker may serve it."""
        usable = {each: engine for each, engine in self.by_worker.items() if not engine.fault}
        candidates = usable
        if stored:
            vouched = {
                each: engine for each, engine in usable.items() if engine.digests.issubset(stored)
            }
            # Until a worker has fetched it, the engine that was in service before stays.
            before = {each: engine for each, engine in usable.items() if each in self._holders}
            candidates, stored = vouched or before, stored if vouched else ()
        self._review(candidates, usable, stored)
        self._complete(candidates.values())
        self.conflicts = []
        resolved = dict(self.by_worker)
        serving: dict[WorkerId, Engine] = {}
        for worker_id, engine in usable.items():
            difference = "its files are not those of the store"
            if worker_id in candidates and self.description is not None:
                difference = self.description.difference(engine)
            if difference:
                self._add_conflict(worker_id, "", engine.digest, difference)
                self._holders.pop(worker_id, None)
                fault = f"it differs from the engine of this name in service: {difference}"
                resolved[worker_id] = replace(engine, fault=fault)
            else:
                serving[worker_id] = self._served(worker_id, engine)
                self._holders[worker_id] = None
        self.engine = _merged(serving.values())
        if not self.by_worker and not self.committed:  # no client knows it
            self.forget_description()
        return resolved | serving

    def _review(
        self,
        candidates: Mapping[WorkerId, Engine],
        usable: Mapping[WorkerId, Engine],
        stored: Collection[str],
    ) -> None:
        """Choose the description in service, again if no worker has the files of the former one.

        A worker that served a committed description and offers nothing usable now, because it
        is absent or inspects its engines, still has all files.
        """
        changed: list[Engine] = []
        description = self.description
        if description is not None and self.committed:
            changed = [engine for each, engine in candidates.items() if each in self._holders]
            alike = {
                worker_id: _files_of(engine).keys() - description.other_files(engine)
                for worker_id, engine in candidates.items()
                if not description.difference(engine)
            }
            silent = {each for each in self._holders if each not in usable}
            self._holders = {
                each: None for each in self._holders if each in alike or each in silent
            }
            files = {
                name: digest
                for name, digest in description.files.items()
                if not (stored and digest) or digest in stored
                if silent or any(name in theirs for theirs in alike.values())
            }
            if files or not candidates:
                self.description = replace(description, files=files or description.files)
                return
        self.forget_description()
        # Before others, which may have waited for this.
        chosen = next(iter([*changed, *candidates.values()]), None)
        self.description = None if chosen is None else Description.of(chosen)

    def _complete(self, candidates: Iterable[Engine]) -> None:
        if self.description is None:
            return
        for engine in candidates:
            if not self.description.difference(engine):
                self.description = self.description.completed(engine)

    def _served(self, worker_id: WorkerId, engine: Engine) -> Engine:
        """Return an engine that is in service as its worker may serve it."""
        description = self.description
        if description is None or not engine.variants:
            return engine
        others = description.other_files(engine)
        unused = list(engine.unused_variants)
        for name, digest in others.items():
            difference = description.file_difference(name, digest)
            self._add_conflict(worker_id, name, digest, difference)
            reason = f"it differs from the variant of this name in service: {difference}"
            unused.append(UnusedVariant(name, reason))
        variants = tuple(each for each in engine.variants if each.name not in others)
        return replace(
            engine, variants=variants, digest=variants[0].digest, unused_variants=tuple(unused)
        )

    def _add_conflict(
        self, worker_id: WorkerId, variant: str, digest: str, difference: str
    ) -> None:
        files = {} if self.description is None else self.description.files
        self.conflicts.append(
            EngineConflict(
                worker_id, self._name, variant, digest, files.get(variant, ""), difference
            )
        )


def _merged(engines: Iterable[Engine]) -> Engine | None:
    """Return the first engine, with the variants of all; None if there is none."""
    served = list(engines)
    if not served or not served[0].variants:
        return served[0] if served else None
    variants: dict[str, Variant] = {}
    for engine in served:
        for variant in engine.variants:
            variants.setdefault(variant.name, variant)
    return replace(served[0], variants=tuple(variants.values()))
