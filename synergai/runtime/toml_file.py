"""TOML files that people write, read as structs, with their faults in sentences."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from synergai.errors import InvalidInput
from synergai.runtime.struct_faults import sentence

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

_MAX_BYTES: Final = 1 << 20
_LONG_KEY: Final = re.compile(r"""(\.[ \t]*([\w-]+|"([^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*){64}""")
"""A key of more parts than any file has. Python's parser takes seconds for one of thousands."""


def read_toml(path: Path, kind: type[T], what: str, max_bytes: int = _MAX_BYTES) -> T:
    """Read a file; `what` it is begins the message of each error."""
    content = load_toml(path, what, max_bytes)
    try:
        return msgspec.convert(content, kind, dec_hook=_construct)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{what}: {sentence(error, kind)}") from None


def load_toml(path: Path, what: str, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """Return the content of a file."""
    if path.exists() and not path.is_file():  # a pipe or a device may never end
        raise InvalidInput(f"{what} cannot be read: it is not a regular file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{what} cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise InvalidInput(f"{what} is larger than {max_bytes:,} bytes")
    try:
        return _parse(content.decode("utf-8-sig"))  # some editors begin files with a mark
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise InvalidInput(f"{what} is not TOML: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply") from None


def _parse(text: str) -> dict[str, Any]:
    if _LONG_KEY.search(text):
        raise RecursionError
    return tomllib.loads(text)


def _construct(kind: type[T], value: object) -> T:
    """Make a path of a string."""
    if not isinstance(value, str):
        raise TypeError("must be a string")
    return kind(value)  # type: ignore[call-arg]  # such as Path
