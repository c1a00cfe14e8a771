"""Backend for TensorFlow Lite on the CPU, using LiteRT or else tflite-runtime."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

try:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
except ImportError as _without_litert:  # it needs a newer C library than some boards have
    try:
        from tflite_runtime.interpreter import Interpreter, OpResolverType
    except ModuleNotFoundError:
        raise _without_litert from None

from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.formats.tflite_tensors import tensor_details, tensor_specs
from synergai.models.processing import Quantisation
from worker_agent.backends import runtime_failure
from worker_agent.cpu_affinity import pin_new_threads, thread_cores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from worker_agent.backends import Array
    from worker_agent.providers import ProviderChoice

_MISSING: Final = re.compile("unresolved custom op|Select TensorFlow op")
"""What the runtime says of operators that it lacks, whatever the inputs are."""
_DEFAULT_RESOLVER: Final = OpResolverType.AUTO
_MAX_REPORTED_CHARS: Final = 1 << 20
"""Length of all error messages of an interpreter above which it is replaced."""


class TfliteBackend:
    """A model in a TensorFlow Lite interpreter, by default with XNNPACK if the model allows it.

    Quantised tensors are passed as integers.

    Args:
        signature: the signature to serve, by the names of its tensors; if empty, the first graph.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        provider: ProviderChoice | None = None,
        *,
        signature: str = "",
    ) -> None:
        plain = provider is not None and provider.name == "Builtin"
        self._resolver = (
            OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else _DEFAULT_RESOLVER
        )
        # Not its path: the interpreter would map the file, and crash once that is overwritten.
        self._content = path.read_bytes()
        self._threads = threads
        self._path, self._signature = path, signature
        try:
            self._start_interpreter()
        except InvalidInput:
            raise
        except (RuntimeError, ValueError) as error:
            message = f"TensorFlow Lite cannot load {path.name}: {_one_line(str(error))}"
            raise runtime_failure(message, error) from None
        if provider is not None and not plain and not self._is_delegated():
            raise EngineUnusable(f"XNNPACK runs none of the operations of {path.name}")
        if not self.inputs or not self.outputs:
            raise EngineUnusable(f"{path.name} has no tensor inputs or no tensor outputs")
        self.quantisations = {
            name: quantisation
            for name, details in (*self._inputs.items(), *self._outputs.items())
            if (quantisation := _quantisation(details)) is not None
        }

    def _start_interpreter(self) -> None:
        with pin_new_threads(thread_cores(self._threads)[1:]):
            self._interpreter = Interpreter(
                model_content=self._content,
                num_threads=self._threads,
                experimental_op_resolver_type=self._resolver,
            )
            self._reported = ""
            self._inputs, self._outputs = tensor_details(
                self._interpreter, self._path, self._signature
            )
            self.inputs, self.outputs = tensor_specs(self._inputs), tensor_specs(self._outputs)
            allocated = self._allocate()
        self._runner: Any = None
        if self._signature:
            self._runner = self._interpreter.get_signature_runner(self._signature)
            return
        self._shapes = {
            name: tuple(details["shape"]) for name, details in self._inputs.items() if allocated
        }

    def _allocate(self) -> bool:
        """Return whether the model takes inputs of the sizes in its file, where dynamic ones are 1.

        Otherwise the first query sets the sizes.
        """
        try:
            self._interpreter.allocate_tensors()
        except RuntimeError as error:
            is_dynamic = any(min(spec.shape, default=0) < 0 for spec in self.inputs)
            may_fit = is_dynamic or self._signature  # of another graph than the first
            if not may_fit or _MISSING.search(str(error)):
                raise
            self._reported = str(error)
            return False
        return True

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        if self._runner is None:
            try:
                self._set_inputs(inputs)
            except (RuntimeError, ValueError) as error:
                # The interpreter's sizes are unknown now; the next query must set all of them.
                self._shapes.clear()
                reason = self._reason(error)
                raise InvalidInput(f"TensorFlow Lite rejects the inputs: {reason}") from None
        try:
            if self._runner is not None:
                given = {name: _settable(array) for name, array in inputs.items()}
                results = self._runner(**given)
                return [_array(results[name]) for name in outputs]
            self._interpreter.invoke()
            indices = (self._outputs[name]["index"] for name in outputs)
            return [_array(self._interpreter.get_tensor(index)) for index in indices]
        except (RuntimeError, ValueError) as error:
            reason = self._reason(error)
            raise runtime_failure(
                f"TensorFlow Lite failed: {reason}", RuntimeError(reason)
            ) from None

    def _is_delegated(self) -> bool:
        """Return whether XNNPACK, the only delegate that is ever applied, runs a part of it."""
        # It lists the delegate as an operation.
        details = self._interpreter._get_ops_details()  # noqa: SLF001 - there is no other way
        return any(operation["op_name"] == "DELEGATE" for operation in details)

    def _set_inputs(self, inputs: Mapping[str, Array]) -> None:
        shapes = {name: inputs[name].shape for name in self._inputs}
        if shapes != self._shapes:
            for name, shape in shapes.items():
                # Not strictly: setting a tensor of strings makes the runtime forget which of its
                # dimensions are dynamic. Requests and samples have been checked against them.
                self._interpreter.resize_tensor_input(self._inputs[name]["index"], shape)
            self._interpreter.allocate_tensors()
            self._shapes = shapes
        for name, details in self._inputs.items():
            self._interpreter.set_tensor(details["index"], _settable(inputs[name]))

    def _reason(self, error: Exception) -> str:
        """Return the runtime's message without its earlier ones, which it repeats in each."""
        text = str(error)
        if isinstance(error, RuntimeError):
            text, self._reported = text.removeprefix(self._reported) or text, text
            if len(self._reported) > _MAX_REPORTED_CHARS:
                self._start_interpreter()
        return _one_line(text)


def _settable(array: Array) -> Array:
    """Return an input as the runtime reads it: of a scalar of objects, it would read the address.

    The dtype is a field's because NumPy makes any other string of no bytes one of a zero byte.
    """
    if array.ndim or not array.dtype.hasobject:
        return array
    text: bytes = array.item()
    holder = np.zeros((), [("text", f"S{len(text)}")])
    holder["text"] = text
    return holder["text"]


def _array(result: Any) -> Array:
    """Return an output; the runtime gives a scalar string as ``bytes``."""
    return np.asarray(result, object if isinstance(result, bytes) else None)


def _quantisation(details: dict[str, Any]) -> Quantisation | None:
    """Return the per-tensor quantisation, if any; per-channel ones only concern weights."""
    parameters = details["quantization_parameters"]
    match parameters["scales"].tolist(), parameters["zero_points"].tolist():
        case [scale], [zero_point]:
            return Quantisation(scale=scale, zero_point=zero_point)
        case _:
            return None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500] or "it gives no reason"
