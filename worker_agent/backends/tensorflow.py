"""Backend for TensorFlow on the CPU: SavedModels, and frozen graphs of TensorFlow 1."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from synergai.domain import UNKNOWN_RANK, TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.formats.model_files import is_saved_model
from synergai.models.formats.tensorflow_file import SERVE, SIGNATURE, datatype_of, read_frozen_graph
from worker_agent.backends import runtime_failure
from worker_agent.cpu_affinity import pin_new_threads, thread_cores

# TensorFlow imports Keras if it can, and with it scikit-learn and Matplotlib: half of the time that
# its import takes, and 120 MB, for nothing that a model to serve needs.
sys.modules["keras"] = None  # type: ignore[assignment]  # makes its import fail, as documented
import tensorflow as tf  # noqa: E402

del sys.modules["keras"]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from worker_agent.backends import Array

_TRACE: Final = re.compile(
    r"Graph execution error:|Detected at node |<stack traces|Node: |\d+ root error|  File |    "
)
"""Start of a line above the reason of a failed node: where the model's author defined the node."""
_ROOT: Final = re.compile(r"^\s*\(\d+\) [A-Z_]+:\s*", re.MULTILINE)
"""Number and status code of one of several reasons."""


class TensorflowBackend:
    """A model in TensorFlow; at most one per process, because thread pools are process-wide.

    TensorFlow executes any operation of a graph, so the model must have passed
    ``synergai.models.formats.inspect.check``.

    Args:
        inputs: input tensors of a frozen graph; by default its placeholders.
        outputs: output tensors of a frozen graph; by default the tensors without a consumer.
        signature: signature of a SavedModel.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        signature: str = "",
    ) -> None:
        tf.get_logger().setLevel("ERROR")
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        try:
            with pin_new_threads(thread_cores(threads)):
                tf.config.list_logical_devices("CPU")  # starts the threads
                self._function: _SavedModel | _FrozenGraph
                if is_saved_model(path):
                    self._function = _SavedModel(path, signature or SIGNATURE)
                else:
                    graph = read_frozen_graph(path)
                    self._function = _FrozenGraph(
                        path,
                        inputs or [spec.name for spec in graph.inputs],
                        outputs or [spec.name for spec in graph.outputs],
                    )
        except Exception as error:  # noqa: BLE001 - the runtime raises exceptions of any class
            reason = _reason(error).replace(str(path), path.name)
            message = f"TensorFlow cannot load {path.name}: {reason}"
            raise runtime_failure(message, error) from None
        self.inputs = tuple(_spec(*entry) for entry in self._function.inputs.items())
        self.outputs = tuple(_spec(*entry) for entry in self._function.outputs.items())
        if not self.inputs or not self.outputs:
            raise EngineUnusable(f"{path.name} has no tensor inputs or no tensor outputs")

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        try:
            tensors = {
                name: tf.constant(inputs[name], declared.dtype)
                for name, declared in self._function.inputs.items()
            }
            results = self._function(tensors)
            return [_array(results[name]) for name in outputs]
        except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
            raise InvalidInput(f"TensorFlow rejects the inputs: {_reason(error)}") from None
        except Exception as error:  # noqa: BLE001 - the runtime raises exceptions of any class
            raise runtime_failure(f"TensorFlow failed: {_reason(error)}", error) from None


class _SavedModel:
    """A signature of a SavedModel, with the signature's tensor names.

    The file maps names to tensors, so TensorFlow lists them in another order in each process: they
    are sorted by name, as by `read_saved_model`.
    """

    def __init__(self, path: Path, signature: str) -> None:
        # The signature alone does not keep the variables alive.
        self._loaded = tf.saved_model.load(str(path), tags=[SERVE])
        self._signature = self._loaded.signatures[signature]
        self.inputs = dict(sorted(self._signature.structured_input_signature[1].items()))
        self.outputs = dict(sorted(self._signature.structured_outputs.items()))

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        results: Mapping[str, Any] = self._signature(**inputs)
        return results


class _FrozenGraph:
    """A graph between named tensors, such as ``input:0``, which ``input`` is short for."""

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
        function = tf.compat.v1.wrap_function(
            lambda: tf.graph_util.import_graph_def(definition, name=""), []
        )
        self.inputs = {name: _tensor(function.graph, name) for name in inputs}
        self.outputs = {name: _tensor(function.graph, name) for name in outputs}
        self._pruned = function.prune(list(self.inputs.values()), list(self.outputs.values()))

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        results = self._pruned(*inputs.values())
        return dict(zip(self.outputs, results, strict=True))


def _tensor(graph: Any, name: str) -> Any:
    return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")


def _spec(name: str, declared: Any) -> TensorSpec:
    datatype = datatype_of(declared.dtype.as_datatype_enum)
    if datatype == "unknown":
        raise EngineUnusable(
            f"tensor {name!r} is a {declared.dtype.name}, which is not supported by the Open "
            "Inference Protocol"
        )
    sizes = UNKNOWN_RANK
    if declared.shape.rank is not None:
        sizes = tuple(-1 if size is None else size for size in declared.shape.as_list())
    return TensorSpec(name, datatype, sizes)


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.numpy(), object if tensor.dtype == tf.string else None)


def _reason(error: Exception) -> str:
    """Return the runtime's first reason in one line, with the node that failed."""
    text, _, rest = str(error).partition("[[{{node ")
    lines = (line for line in text.splitlines() if not _TRACE.match(line))
    reason = " ".join(_ROOT.sub("", "\n".join(lines)).split())[:500] or type(error).__name__
    return f"node {rest.partition('}}')[0]!r}: {reason}" if rest else reason
