"""Descriptions of engines, found out by loading them, and their cache.

An entry's key contains the digests of the files that were loaded, so that it stays valid until the
engine changes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct

from synergai.domain import TensorSpec  # noqa: TC001 - msgspec reads the annotations
from synergai.models.formats.model_files import digest
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.directory import EngineDefinition

CACHE_FILE: Final = "engines.json"
"""Name of the cache in a state directory."""
_FORMAT: Final = 1


class EngineDescription(Struct, frozen=True):
    """Properties of an engine that are known only after loading it.

    Attributes:
        unverified: Why it is not known to work; empty if it is, and if an earlier version that
            rejected such engines has described it.
        query_s: Seconds of its fastest query with one thread; 0 if it is unverified.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    samples: int
    unverified: str = ""
    query_s: float = 0.0


class Digests(NamedTuple):
    """Digests of what a description was made of.

    Attributes:
        model: SHA-256 of the model file.
        samples: that of the sample set; empty if there is none.
    """

    key: str
    model: str
    samples: str


def digests_of(definition: EngineDefinition) -> Digests:
    """Return the key of an engine's description, and the digests of its files."""
    of_file = definition.verified_digest()
    of_samples = digest(definition.samples) if definition.samples else ""
    processing = f"{definition.preprocess}:{definition.postprocess}"
    tensors = f"{','.join(definition.inputs)}:{','.join(definition.outputs)}:{definition.signature}"
    # Whether a model accepts batches is checked when it is loaded.
    key = f"{definition.backend}:{of_file}:{of_samples}:{processing}:{tensors}"
    key = f"{key}:{definition.max_batch}"
    return Digests(key, of_file, of_samples)


def read_descriptions(cache: Path) -> dict[str, EngineDescription]:
    """Return the descriptions in a cache by key; none if the file is missing or invalid."""
    try:
        content = json.loads(cache.read_text("utf-8"))
        if content["format"] != _FORMAT:
            return {}
        return msgspec.convert(content["engines"], dict[str, EngineDescription])
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError):
        return {}


def write_descriptions(cache: Path, descriptions: dict[str, EngineDescription]) -> None:
    content = {"format": _FORMAT, "engines": msgspec.to_builtins(descriptions)}
    write_atomic(cache, json.dumps(content))
