"""Backend for ONNX Runtime, on the CPU or with another execution provider."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime as ort

from synergai.domain import UNKNOWN_RANK, TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.formats.inspect import unranked_tensors
from synergai.models.formats.model_files import weight_files
from synergai.wire.arrays import BFLOAT16_BITS
from worker_agent.backends import Interrupted, runtime_failure
from worker_agent.cpu_affinity import thread_cores
from worker_agent.providers import OPERATORS_VARIABLE, ProviderChoice, session_providers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from pathlib import Path

    from worker_agent.backends import Array

_BFLOAT16_TYPE: Final = 16
"""``TensorProto.BFLOAT16``; workers need not have the ``onnx`` package."""
_DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}
_CODE: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_NODE: Final = re.compile(
    r"while running (?P<kind>\S+) node\. Name:'(?P<name>.*?)' Status Message: "
    r"(/\S+:\d+ .*?\) )?(?P<message>.+)"  # a source position and a function's signature
)
_PROVIDER: Final = re.compile(r"\[OpenVINO-EP\] (?P<message>.+)")
"""Behind source positions and signatures of several hundred characters."""
_CUDA: Final = re.compile(r"(?P<message>\w+ failure \d+: .*?) ; GPU=")
"""A call of CUDA or one of its libraries that failed, before source positions and host names."""
_SOURCE: Final = re.compile(r"\S+\.(cc|h):\d+ .*?\) (?=[A-Z])")
"""A source position and the signature of its function."""
_CPU: Final = "CPUExecutionProvider"
_ERROR: Final = 3
_FATAL: Final = 4
"""Log severities; the runtime also raises what it would log."""
_RECORD_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"


class OnnxRuntimeBackend:
    """A model in an ONNX Runtime session."""

    def __init__(self, path: Path, threads: int, provider: ProviderChoice | None = None) -> None:
        try:
            weight_files(path)
        except InvalidInput as error:  # older runtimes open any path that the model names
            raise EngineUnusable(str(error)) from None
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = _FATAL
        # Spinning threads occupy cores that other processes need, and delay working threads on
        # the same core: MobileNet with two threads took 20 ms instead of 9 ms on a loaded
        # machine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if cores := thread_cores(threads):
            # The runtime counts processors from 1 and does not pin the calling thread.
            affinities = ";".join(str(core + 1) for core in cores[1:])
            options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
        providers = [(_CPU, {})] if provider is None else session_providers(provider, threads)
        if provider is not None:
            _check_installed(provider)
            if provider.details.needs_cuda:
                _load_cuda()
            options.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
        try:
            for library in filter(None, os.environ.get(OPERATORS_VARIABLE, "").split(os.pathsep)):
                options.register_custom_ops_library(library)
            # Without the fallback of the Python wrapper, which loads the model again on the CPU, or
            # even computes on it from then on, with no more than a printed text.
            self._session = ort.InferenceSession(
                path, sess_options=options, providers=providers, enable_fallback=0
            )
        except Exception as error:  # noqa: BLE001 - the runtime has an exception class per status code
            how = "" if provider is None else f" with {provider}"
            message = f"ONNX Runtime cannot load {path.name}{how}: {_reason(error)}"
            raise runtime_failure(message, error) from None
        if provider is not None:
            self._check_provider(provider)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        # The runtime gives tensors of unknown rank the shape of a scalar.
        scalars = any(not value.shape for value in (*inputs, *outputs))
        unranked = unranked_tensors(path) if scalars else frozenset[str]()
        self.inputs = tuple(_input(value, unranked) for value in inputs)
        # Sequences and maps have no datatype; they are omitted if there is a tensor output.
        self.outputs = tuple(
            _spec(value, unranked) for value in outputs if value.type in _DATATYPES
        )
        if not self.inputs or not self.outputs:
            raise EngineUnusable(f"{path.name} has no tensor inputs or no tensor outputs")
        self._options = ort.RunOptions()
        self._texts = frozenset(spec.name for spec in self.inputs if spec.datatype == "BYTES")
        self._bfloat16 = frozenset(
            spec.name for spec in (*self.inputs, *self.outputs) if spec.datatype == "BF16"
        )

    def _check_provider(self, provider: ProviderChoice) -> None:
        """Check that the session uses the provider, and runs a node with it."""
        runtime_name = provider.details.runtime_name
        used = self._session.get_providers()
        if used[:1] != [runtime_name]:
            raise EngineUnusable(
                f"ONNX Runtime does not use {provider}, but fell back to "
                f"{', '.join(used) or 'nothing'}; see the log"
            )
        try:
            parts = self._session.get_provider_graph_assignment_info()
        except (AttributeError, RuntimeError):  # before 1.24, or a build without it
            return
        total = sum(len(part.get_nodes()) for part in parts)
        if total and all(part.ep_name != runtime_name for part in parts):
            raise EngineUnusable(f"{provider} runs none of the {total} nodes of the model")

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        if self._texts:
            inputs = {
                name: _to_text(name, array) if name in self._texts else array
                for name, array in inputs.items()
            }
        results: list[Array]
        try:
            if self._bfloat16:
                results = _run_with_bfloat16(
                    self._session, outputs, inputs, self._bfloat16, self._options
                )
            else:
                results = self._session.run(outputs, inputs, self._options)
        except Exception as error:  # noqa: BLE001 - the runtime has an exception class per status code
            if self._options.terminate:
                raise Interrupted from None
            if type(error).__name__ == "InvalidArgument":
                raise InvalidInput(f"ONNX Runtime rejects the inputs: {_reason(error)}") from None
            raise runtime_failure(f"ONNX Runtime failed: {_reason(error)}", error) from None
        return [_array(result) for result in results]

    def interrupt(self) -> None:
        self._options.terminate = True

    def resume(self) -> None:
        self._options = ort.RunOptions()


def _run_with_bfloat16(
    session: Any,
    outputs: Sequence[str],
    inputs: Mapping[str, Array],
    bfloat16: Set[str],
    options: Any,
) -> list[Array]:
    """Compute the named outputs of a model with bfloat16 tensors, given by their bit patterns."""
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_TYPE)
        if name in bfloat16
        else ort.OrtValue.ortvalue_from_numpy(array)
        for name, array in inputs.items()
    }
    return [
        _from_ort_value(value)
        for value in session.run_with_ort_values(list(outputs), values, options)
    ]


def _from_ort_value(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = value.shape()
    # The runtime exposes such a tensor only by the address of memory that `value` owns.
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape))
    return np.frombuffer(data, BFLOAT16_BITS).reshape(shape)


def _check_installed(provider: ProviderChoice) -> None:
    """Check that the runtime was built with the provider."""
    available: list[str] = ort.get_available_providers()
    if provider.details.runtime_name not in available:
        names = ", ".join(name.removesuffix("ExecutionProvider") for name in available)
        raise EngineUnusable(
            f"the installed ONNX Runtime {ort.__version__} has no {provider}, only {names}: "
            f"install one with {provider}, or remove {provider} from --providers"
        )


def _load_cuda() -> None:
    """Load the libraries of CUDA and cuDNN that are installed as Python packages.

    The dynamic linker does not look there. It finds those of the system, and the error of a missing
    library is that of the session.
    """
    # 1.31 warns of every session that no plug-in has registered the GPU.
    ort.set_default_logger_severity(_ERROR)
    if hasattr(ort, "preload_dlls"):  # since 1.21
        # It prints the missing library, which may be installed elsewhere.
        with redirect_stdout(sys.stderr):
            ort.preload_dlls()


def _input(value: Any, unranked: Set[str]) -> TensorSpec:
    if value.type not in _DATATYPES:
        raise EngineUnusable(
            f"input {value.name!r} is a {value.type}, which is not supported by the Open "
            "Inference Protocol"
        )
    return _spec(value, unranked)


def _spec(value: Any, unranked: Set[str]) -> TensorSpec:
    if not value.shape and value.name in unranked:
        return TensorSpec(value.name, _DATATYPES[value.type], UNKNOWN_RANK)
    # A dynamic dimension is a name or None.
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in value.shape)
    return TensorSpec(value.name, _DATATYPES[value.type], shape)


def _reason(error: Exception) -> str:
    """Return the runtime's message in one line, without source positions and the file's path."""
    text = _CODE.sub("", " ".join(str(error).split()))
    if found := _NODE.search(text):
        return f"{found['kind']} node {found['name']!r}: {found['message']}"[:500]
    for pattern in (_PROVIDER, _CUDA):
        if found := pattern.search(text):
            return found["message"][:500]
    text = _SOURCE.sub("", text)
    _, marker, rest = text.rpartition("failed:")
    return (rest.strip() if marker else text)[:500] or type(error).__name__


def _array(result: Array) -> Array:
    return _to_bytes(result) if result.dtype.hasobject else result


def _to_text(name: str, array: Array) -> Array:
    try:
        texts = [element.decode() for element in array.flat]
    except UnicodeDecodeError:
        raise InvalidInput(f"input {name!r} must contain UTF-8 strings") from None
    return np.array(texts, dtype=object).reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    return np.array([text.encode() for text in array.flat], dtype=object).reshape(array.shape)
