"""Execution providers as configured, and on one device, as an engine host uses them; runtimes.

The setting is a list of names where the defaults suit, or tables in TOML. The name of a table is
the one in configurations, so that one execution provider can have several of them::

    providers = ["CPU", "OpenVINO"]

    [providers.CPU]

    [providers.TensorRT-fp16]
    provider = "TensorRT"
    device = "1"
    cache = "/var/cache/synergai/tensorrt"
    options = { trt_fp16_enable = "1" }

Sources: the pages "CUDA", "TensorRT", "OpenVINO" and "XNNPACK" of ONNX Runtime's documentation of
execution providers (version 1.24), and the constructor of LiteRT's ``Interpreter``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.setting_types import Parsed
from synergai.runtime.settings import decode_config, encode_config
from synergai.runtime.toml_file import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable

_EMULATED: Final = "Emulated"
CPU: Final = "CPU"
"""Name of the default provider in settings; configurations have an empty name for it."""
ONNXRUNTIME: Final = "onnxruntime"
TFLITE: Final = "tflite"
EMULATED: Final = "emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKind:
    """An execution provider.

    Attributes:
        runtime_name: its name in ONNX Runtime; empty if it is not one of ONNX Runtime.
        fallbacks: the kinds that run the nodes it does not support, before the CPU does.
        device: the default device; empty if it has no devices.
        device_option: option of ONNX Runtime that selects the device.
        device_example: a device, for messages.
        threads_option: option of ONNX Runtime with the number of threads; empty if it has none.
        on_cpu: pattern of the devices that compute with threads of the CPU.
        cache_options: options of ONNX Runtime that make it keep compiled models; ``{}`` is the
            folder.
        default_options: values of options that differ from the defaults of ONNX Runtime.
    """

    name: str
    backends: frozenset[str] = frozenset({ONNXRUNTIME})
    runtime_name: str = ""
    fallbacks: tuple[str, ...] = ()
    device: str = ""
    device_option: str = ""
    device_format: str = ""
    device_example: str = ""
    threads_option: str = ""
    on_cpu: str = ""
    cache_options: dict[str, str] = field(default_factory=dict)
    needs_cuda: bool = False
    default_options: dict[str, str] = field(default_factory=dict)

    def check_device(self, device: str) -> None:
        if not self.device:
            raise InvalidInput(f"{self.name} has no devices, so it cannot use {device!r}")
        if not re.fullmatch(self.device_format, device):
            raise InvalidInput(
                f"{device!r} is not a device of {self.name}: write {self.device_example}"
            )

    def check_option(self, option: str) -> None:
        """Check that an option is one of ONNX Runtime's, which knows them, and no other setting."""
        if not self.runtime_name:
            raise InvalidInput(f"{self.name} has no options, so it cannot use {option!r}")
        elsewhere = {self.device_option: "device", self.threads_option: "threads"}
        elsewhere |= dict.fromkeys(self.cache_options, "cache")
        if option in elsewhere:
            raise InvalidInput(
                f"option {option!r} of {self.name} follows from the setting {elsewhere[option]!r}"
            )

    def uses_threads(self, device: str) -> bool:
        """Return whether it computes with threads of the CPU, so that their number matters."""
        return bool(self.on_cpu) and re.fullmatch(self.on_cpu, device) is not None


_ANY: Final = ".*"
_NUMBERED: Final = r"\d+"

_KINDS: Final = (
    ProviderKind(
        name="CUDA",
        runtime_name="CUDAExecutionProvider",
        device="0",
        device_option="device_id",
        device_format=_NUMBERED,
        device_example="the number of a GPU, such as 0",
        needs_cuda=True,
        # Answers should not depend on the worker: with ten bits of mantissa, MobileNet's
        # differ by 0.003 from the CPU's.
        default_options={"use_tf32": "0"},
    ),
    ProviderKind(
        name="TensorRT",
        runtime_name="TensorrtExecutionProvider",
        fallbacks=("CUDA",),
        device="0",
        device_option="device_id",
        device_format=_NUMBERED,
        device_example="the number of a GPU, such as 0",
        cache_options={
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": "{}",
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": "{}",
        },
        needs_cuda=True,
    ),
    ProviderKind(
        name="OpenVINO",
        runtime_name="OpenVINOExecutionProvider",
        device="CPU",
        device_option="device_type",
        device_format=r"(CPU|GPU(\.\d+)?|NPU)|(AUTO|HETERO|MULTI):[A-Z0-9.,]+",
        device_example="CPU, GPU, GPU.1, NPU, or several as in AUTO:GPU,CPU",
        threads_option="num_of_threads",
        on_cpu="CPU",
        cache_options={"cache_dir": "{}"},
    ),
    ProviderKind(
        name="XNNPACK",
        backends=frozenset({ONNXRUNTIME, TFLITE}),
        runtime_name="XnnpackExecutionProvider",
        threads_option="intra_op_num_threads",
        on_cpu=_ANY,
    ),
    ProviderKind(name="Builtin", backends=frozenset({TFLITE}), on_cpu=_ANY),
    ProviderKind(
        name=_EMULATED,
        backends=frozenset({EMULATED}),
        device="0",
        device_format=_NUMBERED,
        device_example="a number, such as 0",
    ),
)
KINDS: Final = {kind.name: kind for kind in _KINDS}
"""All kinds by name; ``Builtin`` is TensorFlow Lite without XNNPACK, its default."""


def kind_of(name: str) -> ProviderKind:
    if name not in KINDS:
        close = {kind.lower(): kind for kind in (CPU, *KINDS)}.get(name.lower())
        hint = f"; did you mean {close!r}?" if close else ""
        available = ", ".join(each for each in (CPU, *KINDS) if each != _EMULATED)
        raise InvalidInput(f"{name!r} is not an execution provider; available: {available}{hint}")
    return KINDS[name]


_MAX_DEVICE_THREADS: Final = 1


class ProviderChoice(Struct, frozen=True, kw_only=True):
    """An execution provider on one device, or the CPU.

    It is called by the name of its table in the settings. The cache has compiled models.
    """

    name: str
    kind: str
    device: str = ""
    options: dict[str, str] = {}
    cache: Path | None = None

    @property
    def details(self) -> ProviderKind:
        return KINDS[self.kind]

    @property
    def uses_threads(self) -> bool:
        return self.details.uses_threads(self.device)

    def __str__(self) -> str:
        return f"{self.name} on device {self.device}" if self.device else self.name

    def encode(self) -> str:
        """Return it as JSON, for the command line of an engine host."""
        return encode_config(self)

    @classmethod
    def decode(cls, text: str) -> ProviderChoice:
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


_Scalar: TypeAlias = bool | int | float | str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    provider: Annotated[str, Meta(min_length=1)] = ""
    device: _Scalar = ""
    cache: str | None = None
    options: dict[str, _Scalar] = {}


def parse_providers(value: object) -> tuple[ProviderChoice, ...]:
    """Parse a list of names, or tables by name."""
    if isinstance(value, dict):
        found = [_parse_table(name, table) for name, table in value.items()]
    else:
        names = list(value) if isinstance(value, (list, tuple)) else [value]
        found = [
            name if isinstance(name, ProviderChoice) else _parse_table(name, {}) for name in names
        ]
    for name, count in Counter(choice.name for choice in found).items():
        if count > 1:
            raise InvalidInput(f"{name} is listed twice")
    return tuple(found)


Providers: TypeAlias = Annotated[tuple[ProviderChoice, ...], Parsed(parse_providers)]
"""Execution providers of configurations; the CPU if empty."""


def _parse_table(name: object, table: object) -> ProviderChoice:
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
        return ProviderChoice(name=CPU, kind=CPU)
    kind = kind_of(kind_name)
    device = _text(given.device)
    options = {key: _text(each) for key, each in given.options.items()}
    try:
        if device:
            kind.check_device(device)
        for option in options:
            kind.check_option(option)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
    if given.cache is not None and not kind.cache_options:
        raise InvalidInput(f"{name}: {kind.name} keeps no compiled models, so it needs no cache")
    return ProviderChoice(
        name=name,
        kind=kind.name,
        device=device or kind.device,
        cache=None if given.cache is None else Path(given.cache),
        options=options,
    )


def _text(value: _Scalar) -> str:
    """Return a value as text, as the runtimes take all options."""
    return str(int(value)) if isinstance(value, bool) else str(value)


RUNTIMES: Final = {
    "onnxruntime": ("onnxruntime",),
    "tensorflow": ("tensorflow",),
    "tflite": ("ai_edge_litert", "tflite_runtime"),
}
"""Alternative modules of a backend, which needs one of them."""
OPERATORS_VARIABLE: Final = "SYNERGAI_ONNX_OPERATORS"
"""Environment variable with ONNX Runtime's libraries of custom operators, separated by colons."""


def has_runtime(backend: str) -> bool:
    """Return whether a backend's runtime is installed."""
    return any(find_spec(module) is not None for module in RUNTIMES.get(backend, ()))


@cache
def runtime_version(backend: str) -> str:
    """Return a backend's runtime and its version, such as ``onnxruntime 1.31.1``.

    Empty if it is not installed, or not as a package.
    """
    # Deferred: it takes 3.5 MB, and most processes need no versions.
    from importlib.metadata import packages_distributions, version

    for module in RUNTIMES.get(backend, ()):
        if find_spec(module) is not None:
            packages = sorted(set(packages_distributions().get(module, ())))
            return ", ".join(f"{package} {version(package)}" for package in packages)
    return ""
