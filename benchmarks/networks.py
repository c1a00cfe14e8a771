"""Chains of known networks by the descriptors of their layers, on fast and slow execution places.

Times are not measured: a layer takes as long as its operations and its transfers to memory do, on
places with the speeds below.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import Chain, RouteProblem, RouteWorker
from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FREE: Final = Links({}, Link(1e15))
"""Places share their memory, so that hops take next to nothing."""
_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution, or a fully connected layer with one pixel.

    Attributes:
        pixels: height times width of its input.
        weights: input channels times kernel size times output channels.
        stride: in both directions.
        outputs: elements of its output.
    """

    pixels: int
    weights: int
    stride: int
    outputs: int

    @property
    def hint(self) -> int:
        """The weight of the layer as the thesis prints it, without the stride."""
        return self.pixels * self.weights

    @property
    def operations(self) -> float:
        """Multiply-accumulates."""
        return self.hint / self.stride**2


@dataclass(frozen=True, slots=True)
class Place:
    """Speed of an execution place: operations and bytes per second."""

    operations_per_s: float
    bytes_per_s: float

    def seconds(self, layer: Layer) -> float:
        """Return the time of a layer."""
        moved = _BYTES * (layer.weights + layer.outputs)
        return layer.operations / self.operations_per_s + moved / self.bytes_per_s


FAST: Final = Place(30e9, 40e9)
SLOW: Final = Place(12e9, 8e9)


def _convolution(side: int, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Layer:
    return Layer(side * side, inputs * kernel**2 * outputs, stride, (side // stride) ** 2 * outputs)


def _vgg16() -> Iterator[tuple[Layer, ...]]:
    side, inputs = 224, 3
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            yield (_convolution(side, inputs, outputs, 3),)
            inputs = outputs
        side //= 2
    for inputs, outputs in ((25088, 4096), (4096, 4096), (4096, 1000)):
        yield (_convolution(1, inputs, outputs, 1),)


def _resnet(blocks: Sequence[int]) -> Iterator[tuple[Layer, ...]]:
    yield (_convolution(224, 3, 64, 7, 2),)
    side, inputs = 56, 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers = [
                _convolution(side, inputs, width, 1),
                _convolution(side, width, width, 3, stride),
                _convolution(side // stride, width, 4 * width, 1),
            ]
            if not block:
                layers.append(_convolution(side, inputs, 4 * width, 1, stride))
            yield tuple(layers)
            side, inputs = side // stride, 4 * width
    yield (_convolution(1, 2048, 1000, 1),)


NETWORKS: Final = {
    "VGG16": tuple(_vgg16()),
    "ResNet50": tuple(_resnet((3, 4, 6, 3))),
    "ResNet152": tuple(_resnet((3, 8, 36, 3))),
}
"""Segments between cuts, a block of a ResNet being one."""


def hints(network: str) -> list[float]:
    """Return the work of each segment by the descriptors of its layers."""
    return [float(sum(layer.hint for layer in segment)) for segment in NETWORKS[network]]


def problem(network: str, places: Sequence[Place], queries: int = 1000) -> RouteProblem:
    """Return the problem to run a network as a pipeline over places."""
    segments = NETWORKS[network]
    weights = [0, *accumulate(_BYTES * sum(each.weights for each in part) for part in segments)]
    chain = Chain(
        engine=EngineName(network),
        sizes=(602_112, *(_BYTES * part[-1].outputs for part in segments)),
        weights_before=tuple(weights),
        weights_after=tuple(weights[-1] - before for before in weights),
    )
    tables = {}
    for place in places:
        ends = [0.0, *accumulate(sum(map(place.seconds, part)) for part in segments)]
        tables[place] = tuple(tuple(max(0.0, last - first) for last in ends) for first in ends)
    workers = tuple(RouteWorker(f"w{n}", tables[place]) for n, place in enumerate(places))
    return RouteProblem(chain=chain, workers=workers, links=FREE, queries=queries)
