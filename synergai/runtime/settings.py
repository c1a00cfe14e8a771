"""One frozen settings model per application feeds its command line, environment and TOML file.

An option is declared once, as a field::

    class GatewaySettings(Settings, env_prefix="SYNERGAI_GATEWAY_"):
        listen: Address = Field(
            default="127.0.0.1:8001", description="Where clients connect."
        )

From it come ``--listen HOST:PORT``, ``SYNERGAI_GATEWAY_LISTEN`` and ``listen = "…"`` in the file
given with ``--config``. The command line wins over the environment, that over the file, and the
file over the default. Field types may be strings, numbers, booleans, paths, literals and enums,
tuples of these (``1,2``), dictionaries of texts (``KEY=VALUE,KEY=VALUE``), each also with ``None``.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import types
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from synergai.errors import InvalidInput
from synergai.errors import InvalidSettings as InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails


def validate_address(text: str) -> str:
    """Return `text` if it is ``HOST:PORT`` or ``[IPV6]:PORT``; port 0 asks for a free one.

    Raises:
        InvalidInput: it is not.
    """
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host_is_valid = ":" in host and not set(host[1:-1]) - set("0123456789abcdefABCDEF:.%")
    else:
        host_is_valid = bool(host) and not set(host) & set(":/[]@ \t\n")
    # str.isdecimal also accepts digits of other scripts, which int() would take as well.
    port_is_valid = port.isascii() and port.isdecimal() and int(port) <= 65535
    if not (separator and host_is_valid and port_is_valid):
        raise InvalidInput(
            f"{text!r} is not an address: write HOST:PORT or [IPV6]:PORT, such as 127.0.0.1:8001"
        )
    return text


Address: TypeAlias = Annotated[str, AfterValidator(validate_address)]
"""``HOST:PORT`` of a listener or a server."""


def parse_cores(parts: object) -> tuple[int, ...]:
    """The processor cores named by `parts`: numbers, and ranges such as ``2-5``; each once.

    Raises:
        InvalidInput: one of them is neither, or this machine does not have it.
    """
    cores: set[int] = set()
    there = os.sysconf("SC_NPROCESSORS_CONF")  # those that a power mode has switched off as well
    for part in parts if isinstance(parts, list | tuple) else (parts,):
        first, dash, last = str(part).partition("-")
        numbers = (first, last) if dash else (first,)
        # As with ports, str.isdecimal alone would let digits of other scripts pass.
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise InvalidInput(f"{part!r} is no core: write numbers and ranges, such as 0,2-3")
        start, stop = int(first), int(last or first)
        if not start <= stop:
            raise InvalidInput(f"{part!r} is no range: its end comes before its beginning")
        if stop >= there:
            raise InvalidInput(f"there is no core {stop} here; the last one is {there - 1}")
        cores.update(range(start, stop + 1))
    return tuple(sorted(cores))


Cores: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(parse_cores)]
"""Processor cores by number, as ``taskset --cpu-list`` takes them: ``0,2-3``."""

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
"""From which level on messages are logged."""


class _Positional:
    """Marks a field that is an argument of the command line instead of an option."""


POSITIONAL = _Positional()
"""``engine: Annotated[str, POSITIONAL]`` is given without ``--engine`` before it."""


@dataclass(frozen=True, slots=True)
class OptionName:
    """``as_json: Annotated[bool, Spelled("json")]`` is given as ``--json``."""

    option: str


class Settings(BaseModel):
    """Base of every application's settings: immutable, and nothing unknown is accepted.

    Attributes:
        env_prefix: what the names of a model's variables begin with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    env_prefix: ClassVar[str] = ""

    def __init_subclass__(cls, *, env_prefix: str = "", **kwargs: Any) -> None:
        cls.env_prefix = env_prefix
        super().__init_subclass__(**kwargs)

    @field_validator("*", mode="before")
    @classmethod
    def _split(cls, value: object, info: ValidationInfo) -> object:
        """Let one text hold several values, as on a command line."""
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
        """Settings from the command line's `options`, the environment and a TOML `file`.

        Raises:
            InvalidSettings: a value is wrong, or the file cannot be read, is not TOML, or has a
                key that is not a setting.
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
        """The values of the variables that are set to something, by field."""
        named = ((name, os.environ.get(cls.variable(name))) for name in cls.model_fields)
        return {name: value for name, value in named if value}

    @classmethod
    def _explain(
        cls,
        details: ErrorDetails,
        given: Mapping[str, object],
        from_env: Mapping[str, object],
        file: Path | None,
    ) -> str:
        """One problem in one line: where the value came from, and what is wrong with it."""
        name = str(details["loc"][0]) if details["loc"] else ""
        if details["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, cls.model_fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            return f"{file or cls.__name__}: there is no setting {name!r}{hint}"
        if name in given:
            where = name if cls._is_positional(name) else f"--{cls.option(name)}"
        elif name in from_env:
            where = cls.variable(name)
        elif details["type"] == "missing":
            return f"{name} is missing"
        else:
            where = f"{file}: {name}" if file else name
        return f"{where}: {_reason(details)}" if name else _reason(details)

    @classmethod
    def _is_positional(cls, name: str) -> bool:
        return name in cls.model_fields and POSITIONAL in cls.model_fields[name].metadata

    @classmethod
    def option(cls, name: str) -> str:
        """The option of the field `name`, without the hyphens before it."""
        metadata = cls.model_fields[name].metadata if name in cls.model_fields else ()
        spelled = (each.option for each in metadata if isinstance(each, OptionName))
        return next(spelled, name.replace("_", "-"))

    @classmethod
    def variable(cls, name: str) -> str:
        """The environment variable of the field `name`."""
        return f"{cls.env_prefix}{name}".upper()


def bare_type(annotation: Any) -> Any:
    """The type of a field without ``Annotated`` and without ``| None``."""
    if get_origin(annotation) is Annotated:
        return bare_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [part for part in get_args(annotation) if part is not type(None)]
        if len(others) == 1:
            return bare_type(others[0])
    return annotation


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise InvalidInput(f"{part!r} is not KEY=VALUE")
        pairs[key] = value
    return pairs


def _read(file: Path) -> dict[str, object]:
    """The settings in a TOML file; a key may be written with hyphens, as its option is."""
    try:
        if file.exists() and not file.is_file():  # a pipe or a device may never end
            raise InvalidSettings(f"{file} cannot be read: it is no regular file")
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is not valid TOML: {error}") from None
    return {key.replace("-", "_"): value for key, value in content.items()}


def _reason(details: ErrorDetails) -> str:
    """Pydantic's complaint in the words of a person; our own validators' as it is."""
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return str(cause)
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{details['input']!r} {message}" if message.startswith("should") else message
