"""Settings models that are loaded from command line, environment and TOML file.

Each application declares its options once, as the fields of a model::

    class GatewaySettings(Settings, env_prefix="SYNERGAI_GATEWAY_"):
        listen: Address = Field(
            default="127.0.0.1:8001", description="Address for clients."
        )

This defines the option ``--listen HOST:PORT``, the environment variable ``SYNERGAI_GATEWAY_LISTEN``
and the key ``listen`` of the file given with ``--config``. The command line takes precedence over
the environment, the environment over the file, and the file over the default. Field types may
be strings, numbers, booleans, paths, literals, enums, tuples of these (``1,2``) and dictionaries of
strings (``KEY=VALUE,KEY=VALUE``), each optionally with ``None``.

A field without a description is internal: it has no option and is in no help. Tests and the
emulation of machines set it by its environment variable.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
import types
from dataclasses import dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from synergai.errors import InvalidInput
from synergai.errors import InvalidSettings as InvalidSettings
from synergai.runtime.addresses import refuse_url
from synergai.runtime.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails


_log = logging.getLogger(__name__)

_OF_SERVICE: Final = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?")
"""Rest of the names that Kubernetes gives to variables about a service; `PORT` has a URL."""

HUB: Final = "127.0.0.1:8010"
"""Default address for agents."""


def validate_address(text: str, example: str = "127.0.0.1:8001") -> str:
    """Return `text` if it is ``HOST:PORT`` or ``[IPV6]:PORT``; port 0 stands for a free one.

    Args:
        text: the address.
        example: a valid address of the same kind, for the message.

    Raises:
        InvalidInput: it is not an address.
    """
    host, separator, port = refuse_url(text).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host_is_valid = ":" in host and not set(host[1:-1]) - set("0123456789abcdefABCDEF:.%")
    else:
        host_is_valid = bool(host) and not set(host) & set(":/[]@ \t\n")
    # str.isdecimal and int() both accept digits of other scripts.
    port_is_valid = port.isascii() and port.isdecimal() and int(port) <= 65535
    if not (separator and host_is_valid and port_is_valid):
        raise InvalidInput(
            f"{text!r} is not an address: write HOST:PORT or [IPV6]:PORT, such as {example}"
        )
    return text


Address: TypeAlias = Annotated[str, AfterValidator(validate_address)]
"""``HOST:PORT`` to listen on or to connect to."""

HubAddress: TypeAlias = Annotated[str, AfterValidator(partial(validate_address, example=HUB))]
"""``HOST:PORT`` of a gateway for agents."""


def parse_cores(parts: object) -> tuple[int, ...]:
    """Parse core numbers and ranges such as ``2-5``; return them sorted, without duplicates.

    Raises:
        InvalidInput: a part is neither, or this machine has no such core.
    """
    cores: set[int] = set()
    configured = os.sysconf("SC_NPROCESSORS_CONF")  # includes cores that a power mode has disabled
    for part in parts if isinstance(parts, list | tuple) else (parts,):
        first, dash, last = str(part).partition("-")
        numbers = (first, last) if dash else (first,)
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise InvalidInput(f"{part!r} is not a core: write numbers and ranges, such as 0,2-3")
        start, stop = int(first), int(last or first)
        if not start <= stop:
            raise InvalidInput(f"{part!r} is not a range: its end is before its start")
        if stop >= configured:
            raise InvalidInput(f"this machine has no core {stop}; the last one is {configured - 1}")
        cores.update(range(start, stop + 1))
    return tuple(sorted(cores))


Cores: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(parse_cores)]
"""Numbers of CPU cores, in the format of ``taskset --cpu-list``: ``0,2-3``."""

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_size(value: object) -> object:
    """Parse a number of bytes such as ``20GB`` or ``512MiB``; numbers are left as they are.

    Raises:
        InvalidInput: a text is not a size.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise InvalidInput(f"{value!r} is not a size: write bytes, or a number such as 20GB")
    number, unit, binary = found.groups()
    step = 1024 if binary else 1000
    return int(float(number) * step ** " KMGT".index(unit.upper() or " "))


Size: TypeAlias = Annotated[int, BeforeValidator(parse_size)]
"""Number of bytes, such as ``20GB`` or ``512MiB``."""


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


Duration: TypeAlias = Annotated[float, BeforeValidator(_seconds)]
"""Number of seconds, or a text such as ``30m`` or ``1h30m``."""

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
"""Minimum level of logged messages."""


class _Positional:
    """Marker of a field that is a positional argument instead of an option."""


POSITIONAL = _Positional()
"""Marker of positional arguments: ``engine: Annotated[str, POSITIONAL]``."""


@dataclass(frozen=True, slots=True)
class OptionName:
    """Option name that differs from the field's: ``as_json: Annotated[bool, OptionName("json")]``.

    Attributes:
        name: name of the option, without hyphens before it.
    """

    name: str


class Settings(BaseModel):
    """Base class of settings models: immutable, and unknown keys are errors.

    Attributes:
        env_prefix: prefix of the model's environment variables.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    env_prefix: ClassVar[str] = ""

    def __init_subclass__(cls, *, env_prefix: str = "", **kwargs: Any) -> None:
        cls.env_prefix = env_prefix
        super().__init_subclass__(**kwargs)

    @field_validator("*", mode="before")
    @classmethod
    def _split(cls, value: object, info: ValidationInfo) -> object:
        """Split a string into the elements of a tuple or the items of a dictionary."""
        if not isinstance(value, str) or info.field_name is None:
            return value
        origin = get_origin(bare_type(cls.model_fields[info.field_name].annotation))
        if origin is tuple:
            return [part.strip() for part in value.split(",") if part.strip()]
        if origin is dict:
            return _pairs(value)
        return value

    @classmethod
    def load(cls, options: Mapping[str, object] | None = None, file: Path | None = None) -> Self:
        """Load settings from the command line, the environment and a TOML file.

        Args:
            options: options given on the command line, by field name.
            file: the TOML file.

        Raises:
            InvalidSettings: a value is invalid, or the file cannot be read, is not TOML, or has an
                unknown key.
        """
        given = dict(options or {})
        from_file = _read(file) if file else {}
        from_env = cls._from_environment()
        try:
            return cls(**{**from_file, **from_env, **given})
        except ValidationError as error:
            problems = (
                cls._explain(details, given, from_env, file)
                for details in error.errors(include_url=False)
            )
            raise InvalidSettings("; ".join(problems)) from None

    @classmethod
    def _from_environment(cls) -> dict[str, str]:
        """Return the values of non-empty environment variables by field name."""
        cls._name_unknown_variables()
        named = ((name, os.environ.get(cls.env_var(name))) for name in cls.model_fields)
        return {name: value for name, value in named if value}

    @classmethod
    def _name_unknown_variables(cls) -> None:
        """Warn of environment variables with the prefix of this model that are no setting of it."""
        known = {f"{cls.env_prefix}CONFIG", *map(cls.env_var, cls.model_fields)}
        for name in sorted(os.environ):
            rest = name.removeprefix(cls.env_prefix)
            if rest == name or name in known or _OF_SERVICE.fullmatch(rest):
                continue
            hint = _suggestion(name, known)
            _log.warning("%s has no effect: there is no such setting%s", name, hint)

    @classmethod
    def _explain(
        cls,
        details: ErrorDetails,
        given: Mapping[str, object],
        from_env: Mapping[str, object],
        file: Path | None,
    ) -> str:
        """Format one validation error: the source of the value, and the problem."""
        name = str(details["loc"][0]) if details["loc"] else ""
        if details["type"] == "extra_forbidden":
            hint = _suggestion(name, cls.model_fields)
            return f"{file or cls.__name__}: unknown setting {name!r}{hint}"
        if name in given:
            where = name if cls._is_positional(name) else f"--{cls.option_name(name)}"
        elif name in from_env:
            where = cls.env_var(name)
        elif details["type"] == "missing":
            return f"{name} is missing"
        else:
            where = f"{file}: {name}" if file else name
        return f"{where}: {_reason(details)}" if name else _reason(details)

    @classmethod
    def _is_positional(cls, name: str) -> bool:
        return name in cls.model_fields and POSITIONAL in cls.model_fields[name].metadata

    @classmethod
    def option_name(cls, name: str) -> str:
        """Return the option of the field `name`, without hyphens before it."""
        metadata = cls.model_fields[name].metadata if name in cls.model_fields else ()
        explicit = (each.name for each in metadata if isinstance(each, OptionName))
        return next(explicit, name.replace("_", "-"))

    @classmethod
    def env_var(cls, name: str) -> str:
        """Return the environment variable of the field `name`."""
        return f"{cls.env_prefix}{name}".upper()


def _suggestion(name: str, known: Iterable[str]) -> str:
    import difflib  # only needed for these messages

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def bare_type(annotation: Any) -> Any:
    """Strip ``Annotated`` and ``| None`` off a field's type."""
    if get_origin(annotation) is Annotated:
        return bare_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [part for part in get_args(annotation) if part is not type(None)]
        if len(others) == 1:
            return bare_type(others[0])
    return annotation


def field_of(struct: type[msgspec.Struct], name: str, default: Any = msgspec.NODEFAULT) -> Any:
    """Return a settings field with default, limits and description of a struct's field.

    The field's type must be repeated: ``policy: str = field_of(SchedulingOptions, "policy")``.

    Args:
        struct: the struct that declares the field.
        name: the field's name.
        default: a default that differs from the struct's.
    """
    [declared] = (field for field in msgspec.structs.fields(struct) if field.name == name)
    [meta] = (each for each in get_args(declared.type) if isinstance(each, msgspec.Meta))
    given: dict[str, Any] = {
        key: value
        for key in ("gt", "ge", "lt", "le", "description")
        if (value := getattr(meta, key)) is not None
    }
    if default is msgspec.NODEFAULT:
        default = declared.default
    if default is msgspec.NODEFAULT:
        return Field(default_factory=declared.default_factory, **given)
    return Field(default=default, **given)


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise InvalidInput(f"{part!r} is not KEY=VALUE")
        pairs[key] = value
    return pairs


def _read(file: Path) -> dict[str, object]:
    """Read a TOML file; keys may be written with hyphens like options."""
    try:
        if file.exists() and not file.is_file():  # a pipe or a device may never end
            raise InvalidSettings(f"{file} cannot be read: it is not a regular file")
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is not valid TOML: {error}") from None
    return {key.replace("-", "_"): value for key, value in content.items()}


def _reason(details: ErrorDetails) -> str:
    """Return the message of our own validator, or pydantic's with the value."""
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return str(cause)
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{details['input']!r} {message}" if message.startswith("should") else message
