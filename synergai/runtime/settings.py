"""Settings of programs and commands, from the command line, the environment and a TOML file.

Each program declares its settings once, as the fields of a struct::

    class GatewaySettings(Settings, frozen=True, kw_only=True):
        env_prefix = "SYNERGAI_GATEWAY_"

        listen: Annotated[Address, "Address for clients."] = "127.0.0.1:8001"

The text in the annotation describes it. This defines the option ``--listen HOST:PORT``, the
environment variable ``SYNERGAI_GATEWAY_LISTEN`` and the key ``listen`` of the file given with
``--config``. The command line takes precedence over the environment, the environment over the file,
and the file over the default.

- Fields may be strings, numbers, booleans, paths, literals, enums, tuples of these (``1,2``) and
  dictionaries (``KEY=VALUE,KEY=VALUE``), each optionally with ``None``. Numbers whose names end in
  ``_s`` take durations such as ``1h30m``, and those that end in ``_share`` percentages.
- The fields of a struct within the settings are settings as well, under their own names.
- A field without a description has no option and is in no help: its environment variable or the
  file sets it. Such fields are for rare deployments, tests and the emulation of machines.
- A field ``given`` gets the names of the settings that have no default value.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import os
import re
import types
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from synergai.errors import InvalidInput, InvalidSettings
from synergai.runtime.setting_types import Checked, Duration, OptionName, Parsed, Positional, Share
from synergai.runtime.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


_log = logging.getLogger(__name__)
SettingsT = TypeVar("SettingsT", bound=Struct)

_OF_SERVICE: Final = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?")
"""Rest of the names that Kubernetes gives to variables about a service; `PORT` has a URL."""
_GIVEN: Final = "given"
_NOUNS: Final[dict[Any, str]] = {int: "an integer", float: "a number", bool: "true or false"}
_FLAGS: Final[dict[str, Any]] = {"yes": True, "on": True, "no": False, "off": False}
"""Words for flags that msgspec does not know."""


class Option(NamedTuple):
    """A setting in the form in which the command line, a variable or a file gives it."""

    name: str
    type: Any
    default: Any

    @property
    def flag(self) -> str:
        """Name on the command line, without hyphens before it; a flag that is on is turned off."""
        explicit = next(self._marks(OptionName), None)
        name = explicit.name if explicit else self.name.replace("_", "-")
        return f"no-{name}" if self.default is True else name

    @property
    def description(self) -> str:
        """Text for the help; empty for an internal setting."""
        return next(self._marks(str), "")

    @property
    def is_positional(self) -> bool:
        """Whether it is an argument of the command instead of an option."""
        return any(self._marks(Positional))

    @property
    def bare_type(self) -> Any:
        """Its type, without annotations and ``None``."""
        return bare_type(self.type)

    @property
    def metavar(self) -> str:
        """The value in the help, if its type has a name for it."""
        return next((mark.metavar for mark in self._marks(Parsed, Checked) if mark.metavar), "")

    def convert(self, value: Any) -> Any:
        """Return the value of the field for one that was given, such as the text of an option."""
        given = value
        if isinstance(value, str):
            value = _split(value, self.bare_type)
        for mark in self._marks(Parsed):
            value = mark.parse(value)
        try:
            value = msgspec.convert(value, self.type, strict=False, dec_hook=construct)
        except msgspec.ValidationError:
            raise InvalidInput(f"{given!r} is not {self._expectation()}") from None
        if isinstance(value, float) and math.isnan(value):
            raise InvalidInput(f"{given!r} is not {self._expectation()}")
        for check in self._marks(Checked):
            value = value if value is None else check.check(value)
        return value

    def _marks(self, *kinds: type) -> Iterator[Any]:
        return (mark for mark in _annotations(self.type) if isinstance(mark, kinds))

    def _expectation(self) -> str:
        kind = self.bare_type
        if get_origin(kind) is tuple:
            part = Option(self.name, get_args(kind)[0], NODEFAULT)
            one_or_more = "one or more " if any(m.min_length for m in self._marks(Meta)) else ""
            return f"a list of {one_or_more}values, each {part._expectation()}"
        if get_origin(kind) is dict:
            part = Option(self.name, get_args(kind)[1], NODEFAULT)
            return f"a list of KEY=VALUE, each value {part._expectation()}"
        if choices := choices_of(kind):
            return f"one of {', '.join(choices)}"
        return " ".join([_NOUNS.get(kind, "a string"), *map(_range, self._marks(Meta))])


class Settings(Struct, frozen=True, kw_only=True):
    """Base class of settings.

    Attributes:
        env_prefix: prefix of their environment variables.
        has_file: whether a TOML file may have them.
        other_variables: environment variables with the prefix that the program reads itself.
        panels: settings that the help shows below the common ones, by the heading.
    """

    env_prefix: ClassVar[str] = ""
    has_file: ClassVar[bool] = False
    other_variables: ClassVar[tuple[str, ...]] = ()
    panels: ClassVar[dict[str, tuple[str, ...]]] = {}

    @classmethod
    def load(cls, options: Mapping[str, object] | None = None, file: Path | None = None) -> Self:
        """Load settings from the command line (`options`), the environment and a TOML file."""
        known = options_of(cls)
        from_file = _read(file)
        problems = [
            f"{source}: unknown setting {name!r}{suggestion(name, known)}"
            for source, names in ((file, from_file), (cls.__name__, options or {}))
            for name in names
            if name not in known
        ]
        cls._name_unknown_variables()
        given: dict[str, tuple[str, object]] = {}
        for name, option in known.items():
            if options and name in options:
                given[name] = (name if option.is_positional else f"--{option.flag}"), options[name]
            elif text := os.environ.get(cls.env_var(name)):
                given[name] = cls.env_var(name), text
            elif name in from_file:
                given[name] = f"{file}: {name}", from_file[name]
        values: dict[str, Any] = {}
        for name, option in known.items():
            source, value = given.get(name, (name, option.default))
            if value is NODEFAULT:
                problems.append(f"{name} is missing")
                continue
            try:
                values[name] = option.convert(value)
            except InvalidInput as error:
                problems.append(f"{source}: {error}")
        if problems:
            raise InvalidSettings("; ".join(problems))
        if _GIVEN in cls.__struct_fields__:
            values[_GIVEN] = frozenset(given)
        try:
            return _make(cls, values)
        except InvalidInput as error:
            raise InvalidSettings(str(error)) from None

    @classmethod
    def _name_unknown_variables(cls) -> None:
        """Warn of environment variables that have the prefix of these settings and no effect."""
        names = [*options_of(cls), *(["config"] if cls.has_file else [])]
        known = {*map(cls.env_var, names), *cls.other_variables}
        for name in sorted(os.environ):
            rest = name.removeprefix(cls.env_prefix)
            if rest == name or name in known or _OF_SERVICE.fullmatch(rest):
                continue
            hint = suggestion(name, known)
            _log.warning("%s has no effect: there is no such setting%s", name, hint)

    @classmethod
    def env_var(cls, name: str) -> str:
        """Return the environment variable of the field `name`."""
        return f"{cls.env_prefix}{name}".upper()


def options_of(struct: type[Struct]) -> dict[str, Option]:
    """Return the settings that a struct has, by name; its own ones precede those within it."""
    found: dict[str, Option] = {}
    own: dict[str, Option] = {}
    for field in msgspec.structs.fields(struct):
        if _is_struct(field.type):
            found |= options_of(field.type)
        elif field.name != _GIVEN:
            default = field.default
            if field.default_factory is not NODEFAULT:
                default = field.default_factory()
            option = Option(field.name, _with_unit(field.name, field.type), default)
            found[field.name] = own[field.name] = option
    return found | own


def _with_unit(name: str, kind: Any) -> Any:
    """Let numbers in seconds take durations, and shares percentages."""
    if bare_type(kind) is float and not any(isinstance(m, Parsed) for m in _annotations(kind)):
        if name.endswith("_s"):
            return Annotated[kind, *get_args(Duration)[1:]]
        if name.endswith("_share"):
            return Annotated[kind, *get_args(Share)[1:]]
    return kind


def _make(struct: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    given = {}
    for field in msgspec.structs.fields(struct):
        if _is_struct(field.type):
            given[field.name] = _make(field.type, values)
        elif field.name in values:
            given[field.name] = values[field.name]
    return struct(**given)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def construct(kind: Any, value: Any) -> Any:
    """Return `value` as one of a type that msgspec does not know, such as a path."""
    return kind(value)


def bare_type(annotation: Any) -> Any:
    """Strip ``Annotated`` and ``| None`` off a field's type."""
    if get_origin(annotation) is Annotated:
        return bare_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [part for part in get_args(annotation) if part is not type(None)]
        if len(others) == 1:
            return bare_type(others[0])
    return annotation


def _annotations(kind: Any) -> Iterator[Any]:
    """Yield the annotations of a type, and of the one that is optional in it."""
    if get_origin(kind) is Annotated:
        inner, *annotations = get_args(kind)
        yield from _annotations(inner)
        yield from annotations
    elif get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _annotations(part)


def choices_of(kind: Any) -> list[str]:
    """Return the values of a literal or enum; empty for other types."""
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(choice.value) for choice in kind]
    return []


def _range(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f"from {_number(meta.ge)} to {_number(meta.le)}"
    limits = (
        ("greater than", meta.gt),
        ("at least", meta.ge),
        ("less than", meta.lt),
        ("at most", meta.le),
    )
    text = " and ".join(f"{text} {_number(n)}" for text, n in limits if n is not None)
    return f"of {text}" if text.startswith("at ") else text


def _number(number: float) -> str:
    """Return ``1,000`` for 1000.0."""
    return f"{number:,}".removesuffix(".0")


def _split(text: str, kind: Any) -> Any:
    """Return the parts of a list, the pairs of a dictionary, or a number without spaces."""
    if get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(kind) is dict:
        return _pairs(text)
    if kind is bool:
        return _FLAGS.get(text.strip().lower(), text.strip())
    return text.strip() if kind in _NOUNS else text


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise InvalidInput(f"{part!r} is not KEY=VALUE")
        pairs[key] = value
    return pairs


def _read(file: Path | None) -> dict[str, object]:
    """Read a TOML file, if there is one; keys may be written with hyphens like options."""
    if file is None:
        return {}
    from synergai.runtime.toml_file import load_toml  # only needed with a file

    try:
        content = load_toml(file, str(file))
    except InvalidInput as error:
        raise InvalidSettings(str(error)) from None
    return {key.replace("-", "_"): value for key, value in content.items()}


StructT = TypeVar("StructT", bound="Struct")


def encode_config(config: Struct) -> str:
    """Return a configuration as text for `decode_config`."""
    # Not msgspec's JSON, which turns infinity into null.
    return json.dumps(msgspec.to_builtins(config, enc_hook=os.fspath))


def decode_config(text: str, cls: type[StructT]) -> StructT:
    return msgspec.convert(json.loads(text), cls, dec_hook=construct)
