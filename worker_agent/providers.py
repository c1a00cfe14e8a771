"""Execution providers as configured, and as an engine host uses them; runtimes.

The setting is a list of names, or tables in TOML with options as ONNX Runtime has them::

    providers = ["CPU", "OpenVINO"]

    [providers.CPU]

    [providers.CUDA]
    device_id = 1
    cudnn_conv_algo_search = "HEURISTIC"

Sources: the pages "CUDA", "TensorRT", "OpenVINO" and "XNNPACK" of ONNX Runtime's documentation of
execution providers (version 1.24), and the constructor of LiteRT's ``Interpreter``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Struct

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.runtime.setting_types import Parsed
from synergai.runtime.settings import decode_config, encode_config

if TYPE_CHECKING:
    from collections.abc import Iterable

_EMULATED: Final = "Emulated"
CPU: Final = "CPU"
"""Name of the default provider in settings; configurations have an empty name for it."""
ONNXRUNTIME: Final = "onnxruntime"
TFLITE: Final = "tflite"
EMULATED: Final = "emulated"
_GPU: Final = "device_id"
"""Option of CUDA and TensorRT with the number of the GPU."""
_OPENVINO_DEVICE: Final = "device_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKind:
    """An execution provider.

    Attributes:
        backends: the backends whose engines it runs; the CPU runs engines of all backends.
        runtime_name: its name in ONNX Runtime; empty if it is not one of ONNX Runtime.
        fallbacks: the providers that run the nodes it does not support, before the CPU does.
        threads_option: option of ONNX Runtime with the number of threads; empty if it has none.
        on_cpu: it computes with threads of the CPU, at least by default.
        default_options: values of options that differ from the defaults of ONNX Runtime.
    """

    name: str
    backends: frozenset[str] = frozenset({ONNXRUNTIME})
    runtime_name: str = ""
    fallbacks: tuple[str, ...] = ()
    threads_option: str = ""
    on_cpu: bool = False
    needs_cuda: bool = False
    default_options: dict[str, str] = field(default_factory=dict)


_KINDS: Final = (
    ProviderKind(name=CPU, backends=frozenset(), on_cpu=True),
    ProviderKind(
        name="CUDA",
        runtime_name="CUDAExecutionProvider",
        needs_cuda=True,
        # Answers should not depend on the worker: with ten bits of mantissa, MobileNet's
        # differ by 0.003 from the CPU's.
        default_options={"use_tf32": "0"},
    ),
    ProviderKind(
        name="TensorRT",
        runtime_name="TensorrtExecutionProvider",
        fallbacks=("CUDA",),
        needs_cuda=True,
    ),
    ProviderKind(
        name="OpenVINO",
        runtime_name="OpenVINOExecutionProvider",
        threads_option="num_of_threads",
        on_cpu=True,
        default_options={_OPENVINO_DEVICE: CPU},
    ),
    ProviderKind(
        name="XNNPACK",
        backends=frozenset({ONNXRUNTIME, TFLITE}),
        runtime_name="XnnpackExecutionProvider",
        threads_option="intra_op_num_threads",
        on_cpu=True,
    ),
    ProviderKind(name="Builtin", backends=frozenset({TFLITE}), on_cpu=True),
    ProviderKind(name=_EMULATED, backends=frozenset({EMULATED})),
)
KINDS: Final = {kind.name: kind for kind in _KINDS}
"""All kinds by name; ``Builtin`` is TensorFlow Lite without XNNPACK, its default."""

_MAX_DEVICE_THREADS: Final = 1


class ProviderChoice(Struct, frozen=True):
    """An execution provider, or the CPU, with options of ONNX Runtime."""

    name: str
    options: dict[str, str] = {}

    @property
    def details(self) -> ProviderKind:
        return KINDS[self.name]

    @property
    def uses_threads(self) -> bool:
        """Whether it computes with threads of the CPU, so that their number matters."""
        return self.details.on_cpu and self.options.get(_OPENVINO_DEVICE, CPU) == CPU

    def __str__(self) -> str:
        return self.name

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
        name = "" if self.name == CPU else self.name
        found = (
            Configuration(each.threads if self.uses_threads else 0, each.power_mode, name)
            for each in on_cpu
        )
        return list(dict.fromkeys(found))

    def threads(self, threads: int) -> int:
        """Return the number of threads for `threads` of a configuration.

        The nodes that a device does not support run on the CPU, which other work shares.
        """
        return threads if self.uses_threads else threads or _MAX_DEVICE_THREADS


def session_providers(choice: ProviderChoice, threads: int) -> list[tuple[str, dict[str, str]]]:
    """Return the providers of a session of ONNX Runtime, in order of preference, the CPU last."""
    kind = choice.details
    options = dict(kind.default_options)
    if kind.threads_option and choice.uses_threads:
        options[kind.threads_option] = str(threads)
    gpu = {_GPU: choice.options[_GPU]} if _GPU in choice.options else {}
    fallbacks = [KINDS[name] for name in kind.fallbacks]
    return [
        (kind.runtime_name, options | choice.options),
        *((each.runtime_name, each.default_options | gpu) for each in fallbacks),
        ("CPUExecutionProvider", {}),
    ]


def used_gpus(choices: Iterable[ProviderChoice]) -> set[int]:
    """Return the numbers of the GPUs that CUDA computes on."""
    numbers = (each.options.get(_GPU, "0") for each in choices if each.details.needs_cuda)
    return {int(number) for number in numbers if number.isdecimal()}


def parse_providers(value: object) -> tuple[ProviderChoice, ...]:
    """Parse a list of names, or tables of options by name."""
    if isinstance(value, dict):
        return tuple(_parse_provider(name, options) for name, options in value.items())
    names = list(value) if isinstance(value, (list, tuple)) else [value]
    found = [
        name if isinstance(name, ProviderChoice) else _parse_provider(name, {}) for name in names
    ]
    for name, count in Counter(choice.name for choice in found).items():
        if count > 1:
            raise InvalidInput(f"{name} is listed twice")
    return tuple(found)


Providers: TypeAlias = Annotated[tuple[ProviderChoice, ...], Parsed(parse_providers)]
"""Execution providers of configurations; the CPU if empty."""


def _parse_provider(name: object, options: object) -> ProviderChoice:
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        known = {each.lower(): each for each in KINDS if each != _EMULATED}
        close = known.get(str(name).lower())
        hint = f"; did you mean {close!r}?" if close else ""
        available = ", ".join(known.values())
        raise InvalidInput(f"{name!r} is not an execution provider; available: {available}{hint}")
    if not isinstance(options, dict):
        raise InvalidInput(f"{kind.name}: it must be a table of options, not {options!r}")
    if options and not kind.runtime_name:
        raise InvalidInput(f"{kind.name} has no options, so it cannot use {next(iter(options))!r}")
    return ProviderChoice(
        kind.name, {option: _text(kind.name, option, each) for option, each in options.items()}
    )


def _text(provider: str, option: str, value: object) -> str:
    """Return the value of an option as text, as the runtime takes all of them."""
    if not isinstance(value, bool | int | float | str):
        raise InvalidInput(f"{provider}: option {option!r} must be a text or number, not {value!r}")
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
