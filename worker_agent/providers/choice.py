"""Execution providers as configured, and on one device, as an engine host uses them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import Configuration
from synergai.runtime.config_text import decode_config, encode_config
from worker_agent.providers.kinds import KINDS, ProviderKind

if TYPE_CHECKING:
    from collections.abc import Iterable


_MAX_DEVICE_THREADS: Final = 1
_NOT_IN_NAMES: Final = str.maketrans({":": "-", ",": "-"})


class ProviderChoice(Struct, frozen=True, kw_only=True):
    """An execution provider on one device, or the CPU.

    It is called by the name of its table in the settings. If `parallel`, the device is a separate
    worker, concurrent with the others. The cache has compiled models.
    """

    name: str
    kind: str
    device: str = ""
    options: dict[str, str] = {}
    cache: Path | None = None
    parallel: bool = False

    @property
    def details(self) -> ProviderKind:
        """The description of the execution provider."""
        return KINDS[self.kind]

    @property
    def uses_threads(self) -> bool:
        """Whether the number of threads matters."""
        return self.details.uses_threads(self.device)

    @property
    def suffix(self) -> str:
        """Suffix of the id of its separate worker, such as ``cuda0``."""
        return f"{self.name}{self.device}".lower().translate(_NOT_IN_NAMES)

    def __str__(self) -> str:
        return f"{self.name} on device {self.device}" if self.device else self.name

    def encode(self) -> str:
        """Return it as JSON, for the command line of an engine host."""
        return encode_config(self)

    @classmethod
    def decode(cls, text: str) -> ProviderChoice:
        """Decode the result of `encode`."""
        return decode_config(text, cls)

    def configurations(self, on_cpu: Iterable[Configuration]) -> list[Configuration]:
        """Return the configurations with this provider, given those on the CPU.

        A provider that computes on the CPU has their thread counts; any other has one
        configuration per power mode.
        """
        found = (
            Configuration(each.threads if self.uses_threads else 0, each.power_mode, self.name)
            for each in on_cpu
        )
        return list(dict.fromkeys(found))

    def threads(self, threads: int) -> int:
        """Return the number of threads for `threads` of a configuration.

        The nodes that a device does not support run on the CPU, which other work shares.
        """
        return threads if self.uses_threads else threads or _MAX_DEVICE_THREADS


def without_cpu(
    choices: Iterable[ProviderChoice], default_cache: Path | None = None
) -> list[ProviderChoice]:
    """Return the choices other than the CPU.

    TensorRT, which builds an engine for minutes, keeps it below `default_cache` unless it has a
    cache of its own.
    """
    return [
        replace(each, cache=default_cache / each.name)
        if each.kind == "TensorRT" and each.cache is None and default_cache is not None
        else each
        for each in choices
        if each.kind in KINDS
    ]


def session_providers(choice: ProviderChoice, threads: int) -> list[tuple[str, dict[str, str]]]:
    """Return the providers of a session of ONNX Runtime, in order of preference, the CPU last."""
    kind = choice.details
    options = kind.default_options | choice.options
    if kind.device_option:
        options[kind.device_option] = choice.device
    if kind.threads_option and choice.uses_threads:
        options[kind.threads_option] = str(threads)
    if choice.cache is not None:
        options |= {name: value.format(choice.cache) for name, value in kind.cache_options.items()}
    found = [(kind.runtime_name, options)]
    for name in kind.fallbacks:
        fallback = KINDS[name]
        device = {fallback.device_option: choice.device}
        found.append((fallback.runtime_name, fallback.default_options | device))
    return [*found, ("CPUExecutionProvider", {})]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An execution provider that is installed, but cannot be used here."""

    choice: ProviderChoice
    reason: str


@dataclass(frozen=True, slots=True)
class Offers:
    """The usable execution providers among those that were asked for; `refusals` are the others."""

    cpu: bool = True
    choices: tuple[ProviderChoice, ...] = ()
    refusals: tuple[Refusal, ...] = ()
