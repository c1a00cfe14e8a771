"""Names, safe in paths and on terminals, and versions of engines and variants: ``NAME/2.int8``.

Imports the standard library only, because the power helper, which runs as root, needs it.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from synergai.errors import InvalidInput

_QUOTED: Final = 256
"""Characters of an invalid name that an error quotes; it may be as long as a message."""
_MAX_DIGITS: Final = 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def validate_name(text: str, kind: str) -> str:
    """Return `text` if it is a valid name, safe in paths and on terminals.

    Raises:
        InvalidInput: it is empty, too long, or has characters other than letters, digits, ``._-``.
    """
    if not _NAME.fullmatch(text):
        raise InvalidInput(
            f"{text[:_QUOTED]!r} is not a valid {kind}: use at most 128 letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit"
        )
    return text


def is_number(text: str, most: int) -> bool:
    """Return whether a text is a whole number up to `most`, in few enough digits for ``int``."""
    digits = len(text) <= _MAX_DIGITS and text.isascii() and text.isdecimal()
    return digits and int(text) <= most


EngineName = NewType("EngineName", str)
"""One version of an engine: its name, ``onnx_mobilenet_op11``, for version 1, and ``NAME/N`` for
version N. Jobs, sessions and profiles are of one version; the parts do not matter to them."""

FIRST_VERSION: Final = "1"
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
"""Versions are positive 64-bit integers in the Open Inference Protocol's implementations."""
_MAX_STORED_VERSION: Final = (1 << 31) - 1
_STAGE: Final = re.compile(r"(?P<engine>.+)\.s[0-9]+-[0-9]+", re.ASCII)
"""A stage is the part of an engine between two of its cuts, by their numbers."""


def validate_version(text: str) -> str:
    """Return `text` if it is the version of an engine."""
    if not _VERSION.fullmatch(text):
        raise InvalidInput(
            f"{text[:_QUOTED]!r} is not a version: use a number from 1, without leading zeros"
        )
    return text


def validate_stored_version(version: int) -> int:
    """Return `version` if it is the number of an engine's version in the store."""
    if not 1 <= version <= _MAX_STORED_VERSION:
        raise InvalidInput(
            f"a version must be a number from 1 to {_MAX_STORED_VERSION:,}, not {version}"
        )
    return version


def versioned(name: str, version: str) -> EngineName:
    """Return version `version` of the engine `name`; neither is checked."""
    return EngineName(name if version == FIRST_VERSION else f"{name}/{version}")


def split_version(engine: str) -> tuple[str, str]:
    """Return name and version of an engine."""
    name, separator, version = engine.partition("/")
    return name, version if separator else FIRST_VERSION


def stage_name(engine: str, first: int, last: int) -> EngineName:
    """Return the name of a stage of an engine, or of a version of it: ``NAME.s0-12``.

    Args:
        first: number of the cut at which it begins; 0 for the inputs of the engine.
        last: number of the cut at which it ends; one more than there are for the outputs.
    """
    name, version = split_version(engine)
    return versioned(f"{name}.s{first}-{last}", version)


def is_stage(engine: str) -> bool:
    """Return whether an engine is a stage by its name."""
    return _STAGE.fullmatch(split_version(engine)[0]) is not None


def stage_positions(stage: str) -> tuple[int, int]:
    """Return the numbers of the cuts at which a stage begins and ends."""
    _, _, positions = split_version(stage)[0].rpartition(".s")
    first, last = positions.split("-")
    return int(first), int(last)


def engine_of_stage(stage: str) -> EngineName:
    """Return the engine that a stage is a part of, in the same version."""
    name, version = split_version(stage)
    found = _STAGE.fullmatch(name)
    return versioned(found["engine"] if found else name, version)


def versioned_variant(version: str, variant: str) -> str:
    """Return the text of a version, or of one variant of it: ``2``, ``2.int8``."""
    return f"{version}.{variant}" if variant else version


def validate_variant(text: str) -> str:
    """Return `text` if it is the name of a variant."""
    validate_name(text, "variant name")
    if "." in text:
        raise InvalidInput(f"{text!r} is not a valid variant name: it has a dot")
    return text


def split_variant(text: str) -> tuple[str, str]:
    """Return version and variant of a text such as ``2.int8``; the variant of ``2`` is empty.

    Neither is checked; see `parse_version` for what others send.
    """
    version, _, variant = text.partition(".")
    return version, variant


def parse_version(text: str) -> tuple[str, str]:
    """Return version and variant of a text that a client sent, such as ``2`` or ``2.int8``."""
    if "." not in text:
        return text, ""
    version, variant = split_variant(text)
    try:
        return validate_version(version), validate_variant(variant)
    except InvalidInput:
        raise InvalidInput(
            f"{text[:_QUOTED]!r} is not a version: write its number, such as 2, or with the name "
            "of a variant, 2.int8"
        ) from None


def by_version(engine: str) -> tuple[str, int]:
    """Return the key that sorts engines by name, and then by version."""
    name, version = split_version(engine)
    return name, int(version)


def is_selected(engine: str, text: str) -> bool:
    """Return whether `text` stands for an engine: ``NAME`` for all versions, empty for all."""
    name, version = split_version(engine)
    wanted, separator, number = text.partition("/")
    return not text or (wanted == name and (not separator or number == version))


def validate_engine(text: str) -> EngineName:
    """Return the engine that `text` names, as ``NAME`` or ``NAME/N``."""
    name, version = split_version(text)
    validate_name(name, "engine name")
    if not _VERSION.fullmatch(version):
        raise InvalidInput(
            f"{text[:_QUOTED]!r} is not a valid engine name: after the '/', its version has to be "
            "a number from 1, without leading zeros"
        )
    return versioned(name, version)
