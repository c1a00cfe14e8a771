"""Quantisation parameters of a model's tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """Affine quantisation of a tensor: ``real = scale * (stored - zero_point)``.

    As in TensorFlow Lite's quantisation specification, with one pair for the whole tensor.

    Attributes:
        scale: The step between adjacent integers; positive.
        zero_point: The integer that represents 0.
    """

    scale: float
    zero_point: int
