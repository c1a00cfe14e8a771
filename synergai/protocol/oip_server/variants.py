"""Variants of engines as versions of the Open Inference Protocol.

The version ``2`` leaves the choice of a variant to the server, ``2.int8`` names one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from synergai.versions import versioned_variant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.domain import Engine, Variant


def with_variants(versions: Iterable[tuple[str, Sequence[Variant]]]) -> list[str]:
    """Return the versions of an engine as clients may ask for them, each before its variants.

    Args:
        versions: versions with the variants that they have.
    """
    return [
        versioned_variant(version, name)
        for version, variants in versions
        for name in ("", *(variant.name for variant in variants))
    ]


def of_variant(engine: Engine, variant: str) -> Engine:
    """Return the description of an engine with only one of its variants, which it has."""
    [found] = [each for each in engine.variants if each.name == variant]
    return replace(
        engine,
        version=versioned_variant(engine.version, variant),
        digest=found.digest,
        variants=(found,),
    )
