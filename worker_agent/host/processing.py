"""Pre- and post-processing around the model: decoding images, deriving classes or boxes.

Requests with tensor inputs and outputs only pay for a check of their header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.processing import CLASSES, ImageInput, create_postprocessor, top_classes
from synergai.runtime.text import pip_install
from synergai.wire.validation import DROP, EXIT, LEAVE, STAY, classification_count
from worker_agent.backends import Quantised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.domain import Engine, Exit
    from synergai.oip.inference_pb2 import ModelInferRequest
    from worker_agent.backends import Array, Backend


class Processing:
    """Pre- and post-processing of one loaded engine."""

    def __init__(self, engine: Engine, backend: Backend, threads: int) -> None:
        self._engine = engine
        self._threads = threads
        self._outputs = [spec.name for spec in engine.outputs]
        self._decoder_loaded = False
        self._images = None
        if engine.preprocess:
            spec = engine.inputs[0]
            quantisations = backend.quantisations if isinstance(backend, Quantised) else {}
            quantisation = quantisations.get(spec.name)
            self._images = ImageInput(engine.preprocess, spec, quantisation)
        self._derived = None
        if engine.postprocess:
            self._derived = create_postprocessor(engine.postprocess, engine.outputs)

    def preprocess(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Return the model inputs, with encoded images decoded into a tensor."""
        images = self._images
        if images is None or not inputs[images.name].dtype.hasobject:
            return inputs
        if not self._decoder_loaded:
            self._load_decoder()
        return {**inputs, images.name: images.to_tensor(inputs[images.name].tolist())}

    def outputs_to_compute(self, request: ModelInferRequest) -> Sequence[str]:
        """Return the names of the model outputs that the response to `request` needs."""
        if not request.outputs:
            return self._outputs
        names = dict.fromkeys(output.name for output in request.outputs)
        if self._derived is not None and self._engine.postprocess in names:
            del names[self._engine.postprocess]
            names.update(dict.fromkeys(self._derived.required_outputs))
        return list(names)

    def requested_outputs(
        self, request: ModelInferRequest, computed: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs requested, in the requested order, derived from those `computed`."""
        if not request.outputs:
            return computed
        outputs = {}
        for output in request.outputs:
            if output.name == self._engine.postprocess and self._derived is not None:
                outputs[output.name] = self._derived.derive(computed)
                continue
            array = computed[output.name]
            if output.parameters and (count := classification_count(output)):
                array = top_classes(array, count, as_imagenet=self._engine.postprocess == CLASSES)
            outputs[output.name] = array
        return outputs

    def predicted_class(self, outputs: Sequence[Array]) -> int:
        """Return the predicted class of one sample, given all outputs of the model."""
        if self._derived is not None and self._engine.postprocess == CLASSES:
            return int(self._derived.derive({self._outputs[0]: outputs[0]})[0])
        return int(outputs[0].argmax())

    def _load_decoder(self) -> None:
        # Imported on first use: tensors are served without OpenCV, and few hosts decode images.
        try:
            from synergai.models.images import set_threads
        except ImportError as error:
            # Not EngineUnusable, which would disable the engine for tensor inputs as well.
            raise InvalidInput(
                "this worker cannot decode images without OpenCV; "
                f"{pip_install('images')} there, or send tensors"
            ) from error
        set_threads(self._threads)
        self._decoder_loaded = True


def check_exit(engine: Engine) -> None:
    """Check that a stage has the output that its exit names."""
    if engine.exit is None:
        return
    first, *tensors = engine.outputs
    if first.name != engine.exit.output or first.datatype != "FP32" or not tensors:
        raise EngineUnusable(
            f"engine {engine.name!r}: the output of its exit, {engine.exit.output!r}, has to be "
            "its first output, 32-bit floats, and there has to be one for the next stage"
        )


class EarlyExit:
    """The early exit of a loaded stage."""

    def __init__(self, exit_: Exit, engine: Engine) -> None:
        self._threshold = exit_.threshold
        self._outputs = [spec.name for spec in engine.outputs]

    def outputs_to_compute(self, request: ModelInferRequest) -> Sequence[str]:
        """Return the model outputs that a request needs: the answer, and what the next stage reads.

        The next stage may read the inputs of the engine instead.
        """
        answers_only = _asks(request, DROP) or _asks(request, LEAVE)
        return self._outputs[:1] if answers_only else self._outputs

    def choose(
        self, request: ModelInferRequest, computed: Mapping[str, Array]
    ) -> tuple[dict[str, Array], str]:
        """Return the answer of the engine, and the tensor behind which the query leaves.

        If it stays, return what the next stage reads, and no tensor.
        """
        answer, *tensors = self._outputs
        if self._leaves(request, computed[answer]):
            return {answer: computed[answer]}, tensors[0]
        return {name: computed[name] for name in tensors if name in computed}, ""

    def _leaves(self, request: ModelInferRequest, probabilities: Array) -> bool:
        """Return whether a query leaves; one with several rows does if each of them would."""
        if _asks(request, LEAVE) or _asks(request, STAY):
            return _asks(request, LEAVE)
        return bool(probabilities.max(axis=-1).min(initial=1.0) >= self._threshold)


def _asks(request: ModelInferRequest, what: str) -> bool:
    return EXIT in request.parameters and request.parameters[EXIT].string_param == what
