"""TensorFlow on the CPU: SavedModels, and the frozen graphs of its first version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import tensorflow as tf

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.formats.model_files import is_saved_model
from synergai.models.formats.tensorflow_file import SERVE, SIGNATURE, read_frozen_graph
from worker_agent.cpu_affinity import pin_new_threads, thread_cores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from worker_agent.backends import Array

_DATATYPES: Final = {
    tf.bool: "BOOL",
    tf.uint8: "UINT8",
    tf.uint16: "UINT16",
    tf.uint32: "UINT32",
    tf.uint64: "UINT64",
    tf.int8: "INT8",
    tf.int16: "INT16",
    tf.int32: "INT32",
    tf.int64: "INT64",
    tf.float16: "FP16",
    tf.float32: "FP32",
    tf.float64: "FP64",
    tf.string: "BYTES",
}


class _Function(Protocol):
    """A loaded model, however it was saved; its tensors have a shape and a dtype."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What it takes, by name."""

    @property
    def outputs(self) -> Mapping[str, Any]:
        """What it gives, by name."""

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compute all outputs."""


class TensorflowBackend:
    """A model in TensorFlow. One per process: the process has TensorFlow's threads.

    TensorFlow lets a graph do what it says, which must have passed
    ``synergai.models.formats.inspect.check``.

    Args:
        path: a SavedModel's folder, or a frozen graph.
        threads: for the work within an operation; operations run one after the other.
        inputs: tensors that a frozen graph takes; by default its placeholders.
        outputs: tensors that a frozen graph gives; by default what nothing in it consumes.

    Raises:
        EngineUnusable: on construction, if TensorFlow cannot load the model, or the model takes or
            gives what the Open Inference Protocol cannot carry.
    """

    def __init__(
        self, path: Path, threads: int, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
    ) -> None:
        tf.get_logger().setLevel("ERROR")
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        try:
            with pin_new_threads(thread_cores(threads)):
                tf.config.list_logical_devices("CPU")  # it is this that starts the threads
                self._function: _Function
                if is_saved_model(path):
                    self._function = _SavedModel(path)
                else:
                    seen = read_frozen_graph(path)
                    self._function = _FrozenGraph(
                        path,
                        inputs or [spec.name for spec in seen.inputs],
                        outputs or [spec.name for spec in seen.outputs],
                    )
        except Exception as error:  # noqa: BLE001 - the runtime raises whatever comes up from C++
            reason = _reason(error).replace(str(path), path.name)
            raise EngineUnusable(f"TensorFlow cannot load {path.name}: {reason}") from None
        self.inputs = tuple(_spec(*entry) for entry in self._function.inputs.items())
        self.outputs = tuple(_spec(*entry) for entry in self._function.outputs.items())
        if not self.inputs or not self.outputs:
            raise EngineUnusable(f"{path.name} takes or gives no tensor at all")

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute the named outputs, in that order, for one query.

        Raises:
            InvalidInput: the runtime finds the inputs impossible.
            EngineUnusable: the runtime fails for another reason.
        """
        try:
            tensors = {
                name: tf.constant(inputs[name], declared.dtype)
                for name, declared in self._function.inputs.items()
            }
            results = self._function(tensors)
            return [_array(results[name]) for name in outputs]
        except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
            raise InvalidInput(f"TensorFlow refuses the inputs: {_reason(error)}") from None
        except Exception as error:  # noqa: BLE001 - the runtime raises whatever comes up from C++
            raise EngineUnusable(f"TensorFlow failed: {_reason(error)}") from None


class _SavedModel:
    """A SavedModel's signature for serving; its tensors are called as the signature does."""

    def __init__(self, path: Path) -> None:
        # The signature alone does not keep the variables alive.
        self._loaded = tf.saved_model.load(str(path), tags=[SERVE])
        self._signature = self._loaded.signatures[SIGNATURE]
        self.inputs: Mapping[str, Any] = self._signature.structured_input_signature[1]
        self.outputs: Mapping[str, Any] = self._signature.structured_outputs

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        results: Mapping[str, Any] = self._signature(**inputs)
        return results


class _FrozenGraph:
    """A graph between named tensors, such as ``input:0``; ``input`` is the same."""

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
        whole = tf.compat.v1.wrap_function(
            lambda: tf.graph_util.import_graph_def(definition, name=""), []
        )
        self.inputs = {name: _tensor(whole.graph, name) for name in inputs}
        self.outputs = {name: _tensor(whole.graph, name) for name in outputs}
        self._pruned = whole.prune(list(self.inputs.values()), list(self.outputs.values()))

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        results = self._pruned(*inputs.values())
        return dict(zip(self.outputs, results, strict=True))


def _tensor(graph: Any, name: str) -> Any:
    return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")


def _spec(name: str, declared: Any) -> TensorSpec:
    if declared.dtype.base_dtype not in _DATATYPES:
        raise EngineUnusable(
            f"tensor {name!r} is a {declared.dtype.name}, which the Open Inference Protocol "
            "cannot carry"
        )
    # Of unknown rank is what a graph may give; one open dimension is as near as the protocol is.
    shape = [-1] if declared.shape.rank is None else declared.shape.as_list()
    sizes = tuple(-1 if size is None else size for size in shape)
    return TensorSpec(name, _DATATYPES[declared.dtype.base_dtype], sizes)


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.numpy(), object if tensor.dtype == tf.string else None)


def _reason(error: Exception) -> str:
    """The first line of the runtime's message."""
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__
