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
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.setting_types import Parsed
from worker_agent.providers.choice import ProviderChoice
from worker_agent.providers.kinds import CPU, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS: Final = ("provider", "devices", "parallel", "cache", "options")


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
    if not isinstance(table, dict):
        raise InvalidInput(f"{name}: expected a table with {', '.join(_KEYS)}")
    unknown = sorted(table.keys() - set(_KEYS))
    if unknown:
        raise InvalidInput(f"{name}: unknown key {unknown[0]!r}; available: {', '.join(_KEYS)}")
    kind_name = _text(table.get("provider", name), f"{name}: provider")
    if CPU in (name, kind_name):
        if table or name != CPU:
            raise InvalidInput("CPU is the default provider: it has no settings and no other name")
        return [ProviderChoice(name=CPU, kind=CPU)]
    kind = kind_of(kind_name)
    devices = _devices(table.get("devices", []), name)
    options = _options(table.get("options", {}), name)
    parallel = table.get("parallel", False)
    if not isinstance(parallel, bool):
        raise InvalidInput(f"{name}: parallel must be true or false, not {parallel!r}")
    try:
        for device in devices:
            kind.check_device(device)
        for option in options:
            kind.check_option(option)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
    if len(devices) > 1 and not parallel:
        raise InvalidInput(
            f"{name}: {len(devices)} devices run side by side: set parallel = true, or name one"
        )
    cache = table.get("cache")
    if cache is not None and not kind.cache_options:
        raise InvalidInput(f"{name}: {kind.name} keeps no compiled models, so it needs no cache")
    return [
        ProviderChoice(
            name=name,
            kind=kind.name,
            device=device,
            parallel=parallel,
            cache=None if cache is None else Path(_text(cache, f"{name}: cache")),
            options=options,
        )
        for device in devices or (kind.device,)
    ]


def _devices(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f'{name}: devices must be a list such as ["0"], not {value!r}')
    devices = tuple(_text(device, f"{name}: devices") for device in value)
    if len(set(devices)) < len(devices):
        raise InvalidInput(f"{name}: a device is listed twice")
    return devices


def _options(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{name}: options must be a table, not {value!r}")
    options: Mapping[str, Any] = value
    return {key: _text(each, f"{name}: option {key}") for key, each in options.items()}


def _text(value: object, where: str) -> str:
    """Return a string or number as text; the runtimes take all options as text."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise InvalidInput(f"{where}: expected a string, number or boolean, not {value!r}")
