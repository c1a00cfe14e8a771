"""Backend for TensorFlow Lite on the CPU, using LiteRT or else tflite-runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

try:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
except ImportError:  # LiteRT needs a newer Python or C library
    from tflite_runtime.interpreter import Interpreter, OpResolverType

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.quantisation import Quantisation
from worker_agent.backends.failures import runtime_failure
from worker_agent.cpu_affinity import pin_new_threads, thread_cores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from worker_agent.backends import Array
    from worker_agent.providers.choice import ProviderChoice

_DATATYPES: Final[dict[type[Any], str]] = {
    np.bool_: "BOOL",
    np.uint8: "UINT8",
    np.uint16: "UINT16",
    np.uint32: "UINT32",
    np.uint64: "UINT64",
    np.int8: "INT8",
    np.int16: "INT16",
    np.int32: "INT32",
    np.int64: "INT64",
    np.float16: "FP16",
    np.float32: "FP32",
    np.float64: "FP64",
    np.bytes_: "BYTES",
}


_DEFAULT_RESOLVER: Final = OpResolverType.AUTO


class TfliteBackend:
    """A model in a TensorFlow Lite interpreter, by default with XNNPACK if the model allows it.

    The interpreter does not validate offsets in the file, so the model must have passed
    ``synergai.models.formats.inspect.check``. Quantised tensors are passed as integers.
    """

    def __init__(self, path: Path, threads: int, provider: ProviderChoice | None = None) -> None:
        plain = provider is not None and provider.kind == "Builtin"
        resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else _DEFAULT_RESOLVER
        try:
            with pin_new_threads(thread_cores(threads)[1:]):
                self._interpreter = Interpreter(
                    # Not its path: it would map the file, and crash once that is overwritten.
                    model_content=path.read_bytes(),
                    num_threads=threads,
                    experimental_op_resolver_type=resolver,
                )
                self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise EngineUnusable(
                f"TensorFlow Lite cannot load {path.name}: {_reason(error)}"
            ) from None
        if provider is not None and not plain and not self._is_delegated():
            raise EngineUnusable(f"XNNPACK runs none of the operations of {path.name}")
        inputs = self._interpreter.get_input_details()
        outputs = self._interpreter.get_output_details()
        self.inputs = tuple(_spec(details) for details in inputs)
        self.outputs = tuple(_spec(details) for details in outputs)
        if not self.inputs or not self.outputs:
            raise EngineUnusable(f"{path.name} has no tensor inputs or no tensor outputs")
        self.quantisations = {
            details["name"]: quantisation
            for details in (*inputs, *outputs)
            if (quantisation := _quantisation(details)) is not None
        }
        self._indices = {details["name"]: details["index"] for details in inputs}
        self._outputs = {details["name"]: details["index"] for details in outputs}
        self._shapes = {details["name"]: tuple(details["shape"]) for details in inputs}

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute the named outputs, in that order, for one query or batch."""
        try:
            self._resize(inputs)
            for name, index in self._indices.items():
                self._interpreter.set_tensor(index, inputs[name])
        except (RuntimeError, ValueError) as error:
            # The interpreter's sizes are unknown now; the next query must set all of them.
            self._shapes.clear()
            raise InvalidInput(f"TensorFlow Lite rejects the inputs: {_reason(error)}") from None
        try:
            self._interpreter.invoke()
            return [
                np.asarray(self._interpreter.get_tensor(self._outputs[name])) for name in outputs
            ]
        except (RuntimeError, ValueError) as error:
            raise runtime_failure(f"TensorFlow Lite failed: {_reason(error)}", error) from None

    def _is_delegated(self) -> bool:
        """Return whether XNNPACK, the only delegate that is ever applied, runs a part of it."""
        # It lists the delegate as an operation.
        details = self._interpreter._get_ops_details()  # noqa: SLF001 - there is no other way
        return any(operation["op_name"] == "DELEGATE" for operation in details)

    def _resize(self, inputs: Mapping[str, Array]) -> None:
        """Resize the interpreter's inputs to the shapes of `inputs`."""
        shapes = {name: inputs[name].shape for name in self._indices}
        if shapes == self._shapes:
            return
        for name, shape in shapes.items():
            self._interpreter.resize_tensor_input(self._indices[name], shape, strict=True)
        self._interpreter.allocate_tensors()
        self._shapes = shapes


def _spec(details: dict[str, Any]) -> TensorSpec:
    name, dtype = details["name"], details["dtype"]
    if dtype not in _DATATYPES:
        raise EngineUnusable(
            f"tensor {name!r} is a {dtype.__name__}, which is not supported by the Open Inference "
            "Protocol"
        )
    # Older files have no shape signature if no dimension is dynamic.
    shape = details["shape"] if details["shape_signature"].size == 0 else details["shape_signature"]
    return TensorSpec(name, _DATATYPES[dtype], tuple(int(size) for size in shape))


def _quantisation(details: dict[str, Any]) -> Quantisation | None:
    """Return the per-tensor quantisation, if any; per-channel ones only concern weights."""
    parameters = details["quantization_parameters"]
    match parameters["scales"].tolist(), parameters["zero_points"].tolist():
        case [scale], [zero_point]:
            return Quantisation(scale=scale, zero_point=zero_point)
        case _:
            return None


def _reason(error: Exception) -> str:
    """Return the runtime's message in one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__
