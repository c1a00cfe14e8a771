"""Descriptions of engines that clients rely on, and the workers that serve them.

Workers may offer different engines as one version of a name: other tensors, another file. Only one
description of each version is in service at a time. The catalogue decides which.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import (
    Engine,
    EngineName,
    TensorSpec,
    Variant,
    WorkerId,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DIGEST_SHOWN: Final = 12
"""Characters of a digest that people are shown."""
_SOME: Final = (("", ""),)
"""Variants of which no file is known."""


class Description(Struct, frozen=True, kw_only=True):
    """An engine as clients see it, and its file.

    Attributes:
        backend: backend of the worker that it was established with.
        digest: SHA-256 of the model file there, in hexadecimal digits; empty if unknown.
        variants: pairs of the name and digest of each variant in service; empty if the engine has a
            single file.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocess: str
    postprocess: str
    backend: str
    digest: str
    variants: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Return the description of an engine."""
        return cls(
            inputs=engine.inputs,
            outputs=engine.outputs,
            preprocess=engine.preprocess,
            postprocess=engine.postprocess,
            backend=engine.backend,
            digest="" if engine.variants else engine.digest,
            variants=tuple((variant.name, variant.digest) for variant in engine.variants),
        )

    @property
    def without_files(self) -> Description:
        """The part that all workers which serve an engine with variants have in common."""
        return replace(self, variants=_SOME) if self.variants else self

    def with_files(self, digests: Mapping[str, str]) -> Description:
        """Return the description with these files of the variants, by variant."""
        return replace(self, variants=tuple(digests.items()) or _SOME)

    def difference(self, engine: Engine, *, any_file: bool = False) -> str:
        """Return how an engine differs from this description; empty if it does not.

        Files of different backends are not compared: they have different formats. Those of variants
        are compared one by one, see `gateway.fleet.variant_files`.

        Args:
            engine: the engine of a worker.
            any_file: whether its file may differ.
        """
        for name in ("preprocess", "postprocess"):
            ours, theirs = getattr(self, name), getattr(engine, name)
            if ours != theirs:
                return f"{name} {theirs!r} instead of {ours!r}"
        # Clients name tensors: their order may depend on the runtime.
        for name in ("inputs", "outputs"):
            if set(getattr(self, name)) != set(getattr(engine, name)):
                return f"other {name}"
        if bool(engine.variants) != bool(self.variants):
            return self._other_kind(engine)
        if any_file or engine.variants or engine.backend != self.backend:
            return ""
        return file_difference(self.digest, engine.digest)

    def with_variants(self, engine: Engine) -> Description | None:
        """Return this description of a single file as one of the variants of an engine.

        None if the engine has no variants, or none of this file, or differs otherwise.
        """
        if self.variants or not self.digest:
            return None
        for each in engine.variants:
            if each.digest == self.digest:
                files = ((each.name, each.digest),)
                found = replace(self, digest="", variants=files)
                return None if found.difference(engine) else found
        return None

    def _other_kind(self, engine: Engine) -> str:
        """Return how an engine differs of which only one, this or the engine, has variants."""
        if not engine.variants:
            if not engine.digest:
                return "it has no variants"
            return f"its file of {_shown(engine.digest)} is none of the variants in service"
        if not self.digest or self.digest in engine.digests:
            return "it has variants"
        return f"none of its variants is the file of {_shown(self.digest)} in service"


def file_difference(ours: str, theirs: str) -> str:
    """Return how the digest of a file differs; empty if it does not, or one is unknown."""
    if not (ours and theirs) or ours == theirs:
        return ""
    return f"a file of {_shown(theirs)} instead of {ours[:DIGEST_SHOWN]}…"


def _shown(digest: str) -> str:
    return f"SHA-256 {digest[:DIGEST_SHOWN]}…"


class EngineConflict(NamedTuple):
    """An engine of a worker that is not used, because it differs from the one in service.

    Attributes:
        digest: SHA-256 of the worker's file, in hexadecimal digits; empty if unknown.
        in_service: that of the file in service.
        difference: how the worker's engine differs, for people.
    """

    worker_id: WorkerId
    engine: EngineName
    digest: str
    in_service: str
    difference: str


class Established(Struct, frozen=True, kw_only=True):
    """A description that clients have relied on.

    Attributes:
        description: the description.
        holders: workers that serve it, or did when they were last connected.
        lacking: those of them that do not have a variant in service, by variant.
    """

    description: Description
    holders: tuple[WorkerId, ...]
    lacking: dict[str, tuple[WorkerId, ...]] = {}


class Offer(Struct, frozen=True):
    """An engine as a worker offers it.

    Attributes:
        engine: the engine.
        trusted: whether its description goes before that of others.
        any_file: whether its file may differ from that of other workers.
    """

    engine: Engine
    trusted: bool
    any_file: bool

    def as_variant(self, names: Mapping[str, str]) -> Offer:
        """Return the offer of a single file as that of a variant, if it is one of these.

        Args:
            names: names of variants, by digest.
        """
        name = "" if self.engine.variants else names.get(self.engine.digest, "")
        if not name:
            return self
        variants = (Variant(name=name, digest=self.engine.digest),)
        return Offer(replace(self.engine, variants=variants), self.trusted, self.any_file)

    def difference(self, description: Description) -> str:
        """Return how the engine differs from a description; empty if it does not."""
        return description.difference(self.engine, any_file=self.any_file)


def most_common(offers: list[Offer]) -> Description:
    """Return the description that most of some offers have; of those, the one offered first.

    That of an engine with variants is `Description.without_files`.
    """
    counts = Counter(Description.of(offer.engine).without_files for offer in offers)
    return max(counts, key=counts.__getitem__)  # of equal ones, the first


def all_variants(engines: Iterable[Engine]) -> tuple[Variant, ...]:
    """Return the variants that any of some engines has, each as the first one has it."""
    found: dict[str, Variant] = {}
    for engine in engines:
        for variant in engine.variants:
            found.setdefault(variant.name, variant)
    return tuple(found.values())
