"""Heads of early exits: classifiers on the pooled tensor of a cut, and when a query leaves there.

A head is a ridge regression of the classes on standardised features, followed by a softmax whose
temperature makes its probabilities as likely as possible. The model behind the features stays as
it is. The threshold of an exit is found on other samples than those that the head was trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from msgspec import Struct

from synergai.domain import Exit  # noqa: TC001 - msgspec reads the annotations
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Classes = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_PENALTIES: Final = 10.0 ** np.arange(-4, 3)
"""Ridge penalties to choose from, relative to the mean squared singular value."""
_TEMPERATURES: Final = 2.0 ** np.arange(-2, 6, 0.25)
"""Factors of the scores to choose from."""
SURE: Final = 1.6
"""Standard errors by which a loss may be larger than the calibration shows: 95 % are not."""
_LEAST_DEVIATION: Final = 1e-6
"""Features that vary by less are constant."""


class Head(NamedTuple):
    """A linear classifier.

    Attributes:
        weights: [features, classes].
        bias: [classes].
    """

    weights: Floats
    bias: Floats

    def probabilities(self, features: Floats) -> Floats:
        """Return the probability of each class, [samples, classes], for [samples, features]."""
        scores = features @ self.weights + self.bias
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))


class StageHead(Struct, frozen=True):
    """The head of an early exit, which becomes part of a stage.

    Attributes:
        weights: float32 [features, classes], row by row.
        bias: float32 [classes].
    """

    exit: Exit
    weights: bytes
    bias: bytes

    @classmethod
    def of(cls, head: Head, exit_: Exit) -> Self:
        """Return a head as part of an order."""
        weights, bias = (each.astype("<f4").tobytes() for each in head)
        return cls(exit_, weights, bias)


class Calibration(NamedTuple):
    """What an exit does with the samples that it was calibrated on.

    Attributes:
        threshold: probability of the likeliest class from which on a sample leaves.
        leaves: whether each sample leaves here.
    """

    threshold: float
    leaves: Flags


def train_head(features: Floats, labels: Classes, classes: int) -> Head:
    """Return the head that fits samples best.

    The penalty is the one with the least error on samples that are left out one by one, which
    follows from a single decomposition. The temperature fits the same left-out scores.

    Args:
        features: [samples, features].
        labels: [samples], below `classes`.
    """
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    scale = np.where(deviation > _LEAST_DEVIATION, deviation, np.inf)
    left, values, right = np.linalg.svd((features - mean) / scale, full_matrices=False)
    targets = np.eye(classes)[labels]
    share = targets.mean(axis=0)
    best: tuple[float, Floats, Floats] | None = None
    for penalty in _PENALTIES * np.mean(values**2):
        kept = values**2 / (values**2 + penalty)
        fitted = left @ (kept[:, None] * (left.T @ (targets - share)))
        leverage = (left**2 @ kept + 1 / len(features))[:, None]
        residuals = (targets - share - fitted) / np.maximum(1 - leverage, _LEAST_DEVIATION)
        error = float(np.mean(residuals**2))
        if best is None or error < best[0]:
            shrunk = np.divide(kept, values, out=np.zeros_like(values), where=values > 0)
            weights = right.T @ (shrunk[:, None] * (left.T @ (targets - share)))
            best = error, weights / scale[:, None], targets - residuals
    assert best is not None  # noqa: S101 - there are penalties
    _, weights, left_out = best
    factor = min(_TEMPERATURES, key=lambda factor: _surprise(factor * left_out, labels))
    return Head(factor * weights, factor * (share - mean @ weights))


def calibrate(
    probabilities: Floats, right: Flags, whole_right: Flags, loss: float
) -> Calibration | None:
    """Return the least threshold with which the samples that leave lose little; None if none does.

    What they lose is `SURE` standard errors more than was counted.

    Args:
        probabilities: of the likeliest class, [samples]; of those that get to the exit.
        right: whether the exit answers each of them correctly.
        whole_right: the same of the whole engine.
        loss: by how much the share of right answers to those that leave may be lower than with
            the whole engine.
    """
    order = np.argsort(-probabilities, kind="stable")
    likeliest, differences = probabilities[order], whole_right[order].astype(int) - right[order]
    lost = np.cumsum(differences) + SURE * np.sqrt(np.cumsum(differences != 0))
    allowed = lost <= loss * np.arange(1, len(order) + 1)
    ends = np.append(likeliest[1:] < likeliest[:-1], True)  # equal probabilities leave together
    found = np.flatnonzero(allowed & ends)
    if not len(found):
        return None
    last = int(found[-1])
    below = float(likeliest[last + 1]) if last + 1 < len(likeliest) else 0.0
    threshold = (float(likeliest[last]) + below) / 2
    return Calibration(threshold, probabilities >= threshold)


def check_labels(labels: Sequence[int], classes: int) -> None:
    """Check that labels are classes of an output with so many."""
    if not 0 <= min(labels) <= max(labels) < classes:
        raise InvalidInput(
            f"the labels are from {min(labels)} to {max(labels)}, but the output has {classes} "
            "classes"
        )


def _surprise(scores: Floats, labels: Classes) -> float:
    shifted = scores - scores.max(axis=1, keepdims=True)
    right = shifted[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - right))
