"""The ``[warmup]`` table of engine.toml: what to try a model with that has no sample set.

Each entry is named after an input of the model::

    [warmup]
    tokens = { shape = [1, 16], value = 1 }
    text = { value = "12.5" }
    image = { file = "image.npy" }
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import Annotated, Final

from msgspec import Meta, Struct

from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE

ADVICE: Final = (
    f"add a {SAMPLES_FILE}, or a [warmup] table with shapes or values that the model accepts to "
    f"its {DEFINITION_FILE} (docs/guide/engines.md)"
)
"""Advice for an unverified engine."""

_Size = Annotated[int, Meta(ge=0, le=1 << 62)]


class WarmUpInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape and values to try for one input of a model; anything not given is generated.

    Attributes:
        file: An .npy file with the whole input.
    """

    shape: Annotated[tuple[_Size, ...], Meta(max_length=64)] | None = None
    value: bool | int | float | str | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        if self.file is None:
            return
        if self.file.suffix != ".npy" or not str(self.file).isprintable():
            raise ValueError(f"warmup: {str(self.file)!r} is not the name of an .npy file")
        if self.shape is not None or self.value is not None:
            raise ValueError(f"warmup: the array in {self.file} has its own shape and values")
