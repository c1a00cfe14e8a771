"""What an engine is, so that engines which workers offer under one name can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import TensorSpec, WorkerId  # noqa: TC001 - msgspec decodes with them

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import Engine, EngineName

DIGEST_SHOWN: Final = 12
"""Characters of a digest that people are shown."""


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
        """Return the description of an engine."""
        return cls(
            inputs=engine.inputs,
            outputs=engine.outputs,
            preprocess=engine.preprocess,
            postprocess=engine.postprocess,
            files={each.name: each.digest for each in engine.variants} or {"": engine.digest},
        )

    def files_of(self, engine: Engine) -> dict[str, str]:
        """Return the files of an engine; a single one has the name of the variant that it is."""
        if engine.variants:
            return {each.name: each.digest for each in engine.variants}
        names = (name for name, digest in self.files.items() if digest and digest == engine.digest)
        return {next(names, ""): engine.digest}

    def other_files(self, engine: Engine) -> dict[str, str]:
        """Return the files of an engine that are not those of the same name here."""
        return {
            name: digest
            for name, digest in self.files_of(engine).items()
            if digest and self.files.get(name, digest) not in ("", digest)
        }

    def difference(self, engine: Engine) -> str:
        """Return how an engine differs; empty if clients may use it, or one of its variants."""
        if interface := self._other_interface(engine):
            return interface
        theirs = self.files_of(engine)
        if ("" in theirs) != ("" in self.files):
            return self._other_kind(engine)
        others = self.other_files(engine)
        if len(others) < len(theirs):
            return ""
        name = next(iter(others))
        return (f"variant {name} is " if name else "") + self.file_difference(name, others[name])

    def file_difference(self, name: str, digest: str) -> str:
        """Return how the file of a variant differs, for people."""
        return f"a file of {_shown(digest)} instead of {self.files[name][:DIGEST_SHOWN]}…"

    def joined(self, engine: Engine) -> Description:
        """Return this description, of a single file, as one variant of an engine if it is one."""
        single = self.files.get("", "")
        names = (each.name for each in engine.variants if single and each.digest == single)
        name = next(names, "")
        if not name or self._other_interface(engine):
            return self
        return replace(self, files={name: single})

    def completed(self, engine: Engine) -> Description:
        """Return this description with the files of an engine that it lacks."""
        known = {name: digest for name, digest in self.files.items() if digest}
        return replace(self, files=self.files | self.files_of(engine) | known)

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

    def _other_kind(self, engine: Engine) -> str:
        """Return how an engine differs if only one of both has variants."""
        if not engine.variants:
            if not engine.digest:
                return "it has no variants"
            return f"its file of {_shown(engine.digest)} is none of the variants in service"
        if not self.files[""]:
            return "it has variants"
        return f"none of its variants is the file of {_shown(self.files[''])} in service"


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


def mark_other_samples(engines: Iterable[tuple[WorkerId, Engine]]) -> dict[WorkerId, Engine]:
    """Return the engine of each worker, with how its samples differ from those of the first.

    Such a worker is used all the same, since requests bring their own inputs.
    """
    marked = dict(engines)
    known = [(worker, each) for worker, each in marked.items() if each.samples_digest]
    for worker, each in known[1:]:
        there, first = known[0]
        if each.samples_digest != first.samples_digest:
            text = (
                f"its samples or labels are not those of {there}: a samples.npz of "
                f"{_shown(each.samples_digest)} instead of {first.samples_digest[:DIGEST_SHOWN]}…; "
                "accuracies measured on them are not compared, and jobs over samples mix both"
            )
            marked[worker] = replace(each, other_samples=text)
    return marked
