"""Lists an architecture's layers without computing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.zoo.builders.layer_builder import Convolution, Dense, Layer


class LayerCollector:
    """A canvas on which nothing flows, and that remembers the layers drawn on it."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(self, value: None, layer: Convolution) -> None:  # noqa: ARG002 - as in LayerBuilder
        """Remember the layer."""
        self.layers.append(layer)

    def dense(self, value: None, layer: Dense) -> None:  # noqa: ARG002 - as in LayerBuilder
        """Remember the layer."""
        self.layers.append(layer)

    def max_pool(self, value: None) -> None:
        """Has no weights."""

    def add_relu(self, name: str, value: None, shortcut: None) -> None:
        """Has no weights."""

    def global_average(self, value: None) -> None:
        """Has no weights."""

    def reshape_cells(self, name: str, value: None, depth: int) -> None:
        """Has no weights."""

    def concat(self, name: str, values: Sequence[None]) -> None:
        """Has no weights."""
