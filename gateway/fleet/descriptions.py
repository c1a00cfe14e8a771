"""Descriptions of engines that clients rely on, and the workers that serve them.

Workers may offer different engines as one version of a name: other tensors, another file. Only one
description of each version is in service at a time. The catalogue decides which.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Self

from msgspec import Struct

from synergai.domain import (  # noqa: TC001  # msgspec needs the types
    Engine,
    TensorSpec,
    WorkerId,
)

_DIGEST_SHOWN: Final = 12


class Description(Struct, frozen=True, kw_only=True):
    """What clients see of an engine, and its file.

    Attributes:
        backend: backend of the worker that it was established with.
        digest: SHA-256 of the model file there, in hexadecimal digits; empty if unknown.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocess: str
    postprocess: str
    backend: str
    digest: str

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Return the description of an engine."""
        return cls(
            inputs=engine.inputs,
            outputs=engine.outputs,
            preprocess=engine.preprocess,
            postprocess=engine.postprocess,
            backend=engine.backend,
            digest=engine.digest,
        )

    def difference(self, engine: Engine, *, any_file: bool = False) -> str:
        """Return how an engine differs from this description; empty if it does not.

        Files of different backends are not compared: they have different formats.

        Args:
            engine: the engine of a worker.
            any_file: whether its file may differ.
        """
        for name in ("inputs", "outputs", "preprocess", "postprocess"):
            ours, theirs = getattr(self, name), getattr(engine, name)
            if ours != theirs:
                if isinstance(ours, str):
                    return f"{name} {theirs!r} instead of {ours!r}"
                return f"other {name}"
        if any_file or engine.backend != self.backend or not (self.digest and engine.digest):
            return ""
        if engine.digest != self.digest:
            ours, theirs = self.digest[:_DIGEST_SHOWN], engine.digest[:_DIGEST_SHOWN]
            return f"a file of SHA-256 {theirs}… instead of {ours}…"
        return ""


class Established(Struct, frozen=True, kw_only=True):
    """A description that clients have relied on.

    Attributes:
        description: the description.
        holders: workers that serve it, or did when they were last connected.
    """

    description: Description
    holders: tuple[WorkerId, ...]


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

    def difference(self, description: Description) -> str:
        """Return how the engine differs from a description; empty if it does not."""
        return description.difference(self.engine, any_file=self.any_file)


def most_common(offers: list[Offer]) -> Description:
    """Return the description that most of some offers have; of those, the one offered first."""
    counts = Counter(Description.of(offer.engine) for offer in offers)
    return max(counts, key=counts.__getitem__)  # of equal ones, the first
