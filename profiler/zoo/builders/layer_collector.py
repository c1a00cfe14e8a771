"""Layer builder that only collects the layers of an architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.zoo.builders.layer_builder import Convolution, Dense, Layer


class LayerCollector:
    """Collects the layers in order and computes nothing."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(self, value: None, layer: Convolution) -> None:  # noqa: ARG002 - as in LayerBuilder
        """Append the layer."""
        self.layers.append(layer)

    def dense(self, value: None, layer: Dense) -> None:  # noqa: ARG002 - as in LayerBuilder
        """Append the layer."""
        self.layers.append(layer)

    def max_pool(self, value: None) -> None:
        """Has no weights, so it is not collected."""

    def add_relu(self, name: str, value: None, shortcut: None) -> None:
        """Has no weights, so it is not collected."""

    def global_average(self, value: None) -> None:
        """Has no weights, so it is not collected."""

    def reshape_cells(self, name: str, value: None, depth: int) -> None:
        """Has no weights, so it is not collected."""

    def concat(self, name: str, values: Sequence[None]) -> None:
        """Has no weights, so it is not collected."""
