"""Engines as their definitions and models describe them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from synergai.domain import Engine, Variant
from synergai.errors import EngineUnusable
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.domain import TensorSpec, UnusedVariant
    from synergai.models.descriptions import EngineDescription
    from synergai.models.directory import EngineDefinition

_log = logging.getLogger(__name__)


class Model(NamedTuple):
    """A model of an engine, and what loading it has found out."""

    definition: EngineDefinition
    description: EngineDescription
    digest: str
    samples_digest: str


def pending_engine(definition: EngineDefinition) -> Engine:
    """Return an engine that is yet to be described."""
    return replace(_undescribed(definition, "it is being inspected"), pending=True)


def faulty_engine(definition: EngineDefinition, fault: str, *, too_large: bool = False) -> Engine:
    """Return an engine that cannot be used, and log the reason."""
    fault = fault.removeprefix(f"engine {definition.name!r}: ")  # it is shown next to the name
    fault = printable(fault)  # file names in it may not be valid UTF-8
    _log.warning("engine %s is unusable: %s", definition.name, fault)
    return replace(_undescribed(definition, fault), too_large=too_large)


def described_engine(
    definition: EngineDefinition, models: Sequence[Model], unused: Iterable[UnusedVariant]
) -> Engine:
    """Return an engine as its first model describes it, with the variants that it has."""
    first = models[0]
    declared = {variant.name: variant for variant in definition.variants}
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=first.definition.backend,
        inputs=first.description.inputs,
        outputs=first.description.outputs,
        digest=first.digest,
        samples=first.description.samples,
        unverified=first.description.unverified,
        preprocess=definition.preprocess,
        postprocess=definition.postprocess,
        max_batch=definition.max_batch,
        variants=tuple(
            Variant(
                name=name,
                digest=model.digest,
                accuracy=declared[name].accuracy or 0.0,
                origin=declared[name].origin,
            )
            for model in models
            if (name := model.definition.variant)
        ),
        unused_variants=tuple(unused),
        samples_digest=first.samples_digest,
        query_s=first.description.query_s,
        stage_of=definition.stage_of,
        stage_end=definition.stage_end,
        exit=definition.exit,
    )


def check_alike(model: Model, first: Model) -> None:
    """Check that clients need not know which of two variants answers."""
    ours, theirs = model.description, first.description
    for what in ("inputs", "outputs"):
        if (mine := getattr(ours, what)) != (other := getattr(theirs, what)):
            raise EngineUnusable(
                f"its {what} are {_format(mine)}, but those of variant "
                f"{first.definition.variant} are {_format(other)}; all variants of an engine have "
                "to have the same"
            )
    if ours.unverified and not theirs.unverified:
        raise EngineUnusable(ours.unverified)


def _undescribed(definition: EngineDefinition, fault: str) -> Engine:
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=(),
        outputs=(),
        fault=fault,
    )


def _format(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{each.name} {each.kind}" for each in tensors)
