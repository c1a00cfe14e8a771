"""TOML files that people write, read as structs, with their faults in sentences."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from synergai.errors import InvalidInput
from synergai.runtime.text import suggestion

if TYPE_CHECKING:
    from pathlib import Path


_PLACE: Final = re.compile(r" - at (`key` in )?`\$?\.?(.*)`$")
_STEP: Final = re.compile(r"\.?([\w-]+)|\[[\d.]+\]")
_NOUNS: Final = {
    "array": "a list",
    "bool": "true or false",
    "date": "a date",
    "datetime": "a date and time",
    "float": "a number",
    "int": "an integer",
    "object": "a table",
    "str": "a string",
    "time": "a time",
}
_SENTENCES: Final = (
    (r"Object contains unknown field `(.*)`(.*)", r"there is no setting \1\2"),
    (r"Object missing required field `(.*)`", r"\1 is missing"),
    (r"Expected `(.*?)`, got `(.*)`", r"must be \1, not \2"),
    (r"Expected `array` of length <= (.*)", r"must have at most \1 entries"),
    (r"Expected `(.*?)` of length >= 1", r"must not be empty"),
    (r"Expected `(.*?)` >= (.*)", r"must be \1 of at least \2"),
    (r"Expected `(.*?)` <= (.*)", r"must be \1 of at most \2"),
    (r"Expected `(.*?)` > (.*)", r"must be \1 greater than \2"),
    (r"Expected `str` matching regex .*0-9a-f.*", r"must be 64 hexadecimal digits"),
    (r"Expected `datetime` with a timezone.*", r"must have a time zone, as 2027-06-30T12:00:00Z"),
    (r"Number out of range", r"is too large"),
)
"""Messages of msgspec, and what is said instead."""


def sentence(error: msgspec.ValidationError, kind: type) -> str:
    """Say what a value of a struct has to be."""
    message = str(error)
    place, key = "", ""
    if found := _PLACE.search(message):
        key, place, message = found[1], found[2], message[: found.start()]
    if isinstance(error.__cause__, ValueError):  # of the struct, which names what it is about
        return message
    if message.startswith("Invalid enum value"):
        choices = _choices(_type_at(kind, place))
        message = f"must be one of {', '.join(choices)}, not {message.split(' ', 3)[3][:80]}"
    if message.startswith("Object contains unknown"):
        names = [each.encode_name for each in _type_at(kind, place).fields]
        message += suggestion(message.split("`")[1], names) or f", but {', '.join(names)}"
    for pattern, words in _SENTENCES:
        if match := re.fullmatch(pattern, message):
            message = match.expand(words)
            if words.startswith("must be "):
                message = _in_words(message)
    place = re.sub(r"\[(\d+)\]", lambda index: f" {int(index[1]) + 1}", place)
    where = place.replace("[...]", "").replace(".", ", ").removeprefix(", ")
    if key:
        where = f"a name in {where}"
    if message.startswith(("must ", "is ")):
        return f"{where or 'it'} {message}"
    return f"{where}: {message}" if where else message


def _in_words(message: str) -> str:
    names = rf"\b({'|'.join(_NOUNS)})\b( \| null)?"
    message = re.sub(names, lambda name: _NOUNS[name[1]], message)
    first, _, last = message.rpartition(" | ")
    message = f"{first.replace(' | ', ', ')} or {last}" if first else message
    return message.replace(".0 ", " ").removesuffix(".0")


def _type_at(kind: type, place: str) -> Any:
    node = _bare(inspect.type_info(kind))
    for step in _STEP.finditer(place):
        if isinstance(node, inspect.StructType):
            node = next(each.type for each in node.fields if each.encode_name == step[1])
        else:
            node = node.value_type if isinstance(node, inspect.DictType) else node.item_type
        node = _bare(node)
    return node


def _choices(kind: Any) -> list[str]:
    if isinstance(kind, inspect.EnumType):
        return [str(each.value) for each in kind.cls]
    return [str(each) for each in getattr(kind, "values", ()) if each]


def _bare(node: Any) -> Any:
    """Return the type of `node` without what makes it optional or annotates it."""
    while isinstance(node, inspect.UnionType | inspect.Metadata):
        if isinstance(node, inspect.Metadata):
            node = node.type
        else:
            node = next(each for each in node.types if not isinstance(each, inspect.NoneType))
    return node


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
    if not isinstance(value, str):
        raise TypeError("must be a string")
    return kind(value)  # type: ignore[call-arg]  # such as Path
