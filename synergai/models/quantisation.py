"""How integers stand for real numbers in a quantised model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """A tensor's affine quantisation: ``real = scale * (stored - zero_point)``.

    It is that of TensorFlow Lite's quantisation specification, one pair for the whole tensor.

    Attributes:
        scale: what a step of the stored integer is worth; positive.
        zero_point: the integer that stands for 0.
    """

    scale: float
    zero_point: int
