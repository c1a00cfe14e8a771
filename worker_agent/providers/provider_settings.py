"""Settings of the execution providers: a list of names, or tables in TOML.

The names are enough where the defaults suit::

    providers = ["CPU", "OpenVINO"]

Tables have the details. The name of a table is the one in configurations, so that one execution
provider can have several of them::

    [providers.CPU]

    [providers.TensorRT-fp16]
    provider = "TensorRT"
    devices = ["0", "1"]
    parallel = true
    cache = "/var/cache/synergai/tensorrt"
    options = { trt_fp16_enable = "1" }
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert

from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.setting_types import Parsed
from synergai.runtime.toml_file import sentence
from worker_agent.providers.choice import ProviderChoice
from worker_agent.providers.kinds import CPU, kind_of

_Scalar: TypeAlias = bool | int | float | str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    provider: Annotated[str, Meta(min_length=1)] = ""
    devices: tuple[_Scalar, ...] = ()
    parallel: bool = False
    cache: str | None = None
    options: dict[str, _Scalar] = {}


def parse_providers(value: object) -> tuple[ProviderChoice, ...]:
    """Parse a list of names, or tables by name; return a choice for each device."""
    if isinstance(value, dict):
        tables = [_parse_table(name, table) for name, table in value.items()]
    else:
        names = list(value) if isinstance(value, (list, tuple)) else [value]
        tables = [
            [name] if isinstance(name, ProviderChoice) else _parse_table(name, {}) for name in names
        ]
    for name, count in Counter(choices[0].name for choices in tables).items():
        if count > 1:
            raise InvalidInput(f"{name} is listed twice")
    found = tuple(choice for choices in tables for choice in choices)
    workers: dict[str, ProviderChoice] = {}
    for choice in found:
        if choice.parallel and (other := workers.setdefault(choice.suffix, choice)) is not choice:
            raise InvalidInput(
                f"{other} and {choice} would be one worker, {choice.suffix!r}: give one of the two "
                "tables another name"
            )
    return found


Providers: TypeAlias = Annotated[tuple[ProviderChoice, ...], Parsed(parse_providers)]
"""Execution providers of configurations; all that are offered if empty."""


def _parse_table(name: object, table: object) -> list[ProviderChoice]:
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r} is not the name of an execution provider")
    validate_name(name, "name of an execution provider")
    try:
        given = convert(table, _Table)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {sentence(error, _Table)}") from None
    kind_name = given.provider or name
    if CPU in (name, kind_name):
        if table or name != CPU:
            raise InvalidInput("CPU is the default provider: it has no settings and no other name")
        return [ProviderChoice(name=CPU, kind=CPU)]
    kind = kind_of(kind_name)
    devices = tuple(map(_text, given.devices))
    if len(set(devices)) < len(devices):
        raise InvalidInput(f"{name}: a device is listed twice")
    options = {key: _text(each) for key, each in given.options.items()}
    try:
        for device in devices:
            kind.check_device(device)
        for option in options:
            kind.check_option(option)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
    if len(devices) > 1 and not given.parallel:
        raise InvalidInput(
            f"{name}: {len(devices)} devices run side by side: set parallel = true, or name one"
        )
    if given.cache is not None and not kind.cache_options:
        raise InvalidInput(f"{name}: {kind.name} keeps no compiled models, so it needs no cache")
    return [
        ProviderChoice(
            name=name,
            kind=kind.name,
            device=device,
            parallel=given.parallel,
            cache=None if given.cache is None else Path(given.cache),
            options=options,
        )
        for device in devices or (kind.device,)
    ]


def _text(value: _Scalar) -> str:
    """Return a value as text, as the runtimes take all options."""
    return str(int(value)) if isinstance(value, bool) else str(value)
