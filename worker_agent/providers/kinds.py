"""The execution providers that configurations can name, and their devices.

Sources: the pages "CUDA", "TensorRT", "OpenVINO" and "XNNPACK" of ONNX Runtime's documentation of
execution providers (version 1.24), and the constructor of LiteRT's ``Interpreter``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from synergai.errors import InvalidInput

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
        """Check the name of a device."""
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
        elsewhere = {self.device_option: "devices", self.threads_option: "threads"}
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
    """Return the kind of this name."""
    if name not in KINDS:
        close = {kind.lower(): kind for kind in (CPU, *KINDS)}.get(name.lower())
        hint = f"; did you mean {close!r}?" if close else ""
        available = ", ".join(each for each in (CPU, *KINDS) if each != _EMULATED)
        raise InvalidInput(f"{name!r} is not an execution provider; available: {available}{hint}")
    return KINDS[name]


def kind_with_runtime_name(runtime_name: str) -> ProviderKind | None:
    """Return the kind with this name in ONNX Runtime; None if configurations cannot name it."""
    return next((kind for kind in _KINDS if kind.runtime_name == runtime_name), None)
