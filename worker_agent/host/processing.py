"""What an engine host does around the model: images into it, answers out of it, if it is asked to.

A request that brings tensors and asks for tensors pays one look at its header for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from synergai.errors import InvalidInput
from synergai.models.postprocess import CLASSES, create_postprocessor, top_classes
from synergai.models.preprocess import ImageInput
from synergai.protocol.validation import classification_count
from worker_agent.backends import Quantised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.domain import Engine
    from synergai.oip.inference_pb2 import ModelInferRequest
    from worker_agent.backends import Backend

    Array: TypeAlias = NDArray[Any]


class Processing:
    """Pre- and post-processing of one loaded engine.

    Args:
        engine: says which.
        backend: the loaded model.
        threads: that OpenCV may use.

    Raises:
        EngineUnusable: on construction, if the model's tensors do not allow it.
    """

    def __init__(self, engine: Engine, backend: Backend, threads: int) -> None:
        self._engine = engine
        self._threads = threads
        self._outputs = [spec.name for spec in engine.outputs]
        self._can_decode = False
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
        """The inputs as the model takes them: encoded images have become a tensor.

        Raises:
            InvalidInput: one of them is no image, or too large; or this worker decodes none.
        """
        images = self._images
        if images is None or not inputs[images.name].dtype.hasobject:
            return inputs
        if not self._can_decode:
            self._load_decoder()
        return {**inputs, images.name: images.to_tensor(inputs[images.name].tolist())}

    def outputs_to_compute(self, request: ModelInferRequest) -> Sequence[str]:
        """The model's outputs that the answer to `request` consists of or is made from."""
        if not request.outputs:
            return self._outputs
        names = dict.fromkeys(asked.name for asked in request.outputs)
        if self._derived is not None and self._engine.postprocess in names:
            del names[self._engine.postprocess]
            names.update(dict.fromkeys(self._derived.required_outputs))
        return list(names)

    def requested_outputs(
        self, request: ModelInferRequest, computed: dict[str, Array]
    ) -> dict[str, Array]:
        """The outputs that `request` asks for, in its order, made from those `computed`.

        Raises:
            InvalidInput: one cannot be had in that form.
        """
        if not request.outputs:
            return computed
        outputs = {}
        for asked in request.outputs:
            if asked.name == self._engine.postprocess and self._derived is not None:
                outputs[asked.name] = self._derived.derive(computed)
                continue
            output = computed[asked.name]
            if asked.parameters and (count := classification_count(asked)):
                output = top_classes(output, count, as_imagenet=self._engine.postprocess == CLASSES)
            outputs[asked.name] = output
        return outputs

    def answer(self, outputs: Sequence[Array]) -> int:
        """The class that all of the model's outputs for one sample mean."""
        if self._derived is not None and self._engine.postprocess == CLASSES:
            return int(self._derived.derive({self._outputs[0]: outputs[0]})[0])
        return int(outputs[0].argmax())

    def _load_decoder(self) -> None:
        # Only now: an agent without OpenCV serves tensors, and most hosts never see an image.
        try:
            from synergai.models.images import set_threads
        except ImportError as error:
            # Not the engine's fault, whose tensors would not be taken any more.
            raise InvalidInput(
                "this worker cannot decode images, for it lacks OpenCV: "
                "install synergai[images] there, or send tensors"
            ) from error
        set_threads(self._threads)
        self._can_decode = True
