"""Pre- and post-processing around the model: decoding images, deriving classes or boxes.

Requests with tensor inputs and outputs only pay for a check of their header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.models.postprocess import CLASSES, create_postprocessor, top_classes
from synergai.models.preprocess import ImageInput
from synergai.runtime.text import pip_install
from synergai.wire.validation import classification_count
from worker_agent.backends import Quantised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Engine
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
