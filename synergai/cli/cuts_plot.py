"""Plot of an engine's cuts: the size of the tensor at each, and the weights before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.runtime.figures import make_figure, plain_ticks, save, use_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.models.cutting.cuts import Cut

_SEAM: Final = "#0072b2"
_OTHER: Final = "#9aa5b1"
_MIB: Final = 1 << 20


def plot_cuts(cuts: Sequence[Cut], title: str, path: Path) -> None:
    """Write a PNG of cuts."""
    figure = make_figure(9.0, 7.0)
    figure.suptitle(title)
    sizes, weights = figure.subplots(2, 1, sharex=True)
    for label, colour, chosen in (
        ("seam", _SEAM, [cut for cut in cuts if cut.seam]),
        ("other cut", _OTHER, [cut for cut in cuts if not cut.seam]),
    ):
        if chosen:
            work = [cut.work * 100 for cut in chosen]
            megabytes = [cut.size_bytes / _MIB for cut in chosen]
            sizes.plot(work, megabytes, "o", color=colour, label=label, markersize=4)
    use_log(sizes, "y")
    sizes.set_ylabel("tensor (MiB)")
    if cuts:
        sizes.legend()
    work = [cut.work * 100 for cut in cuts]
    for label, values in (
        ("before", [cut.weights_before / _MIB for cut in cuts]),
        ("behind", [cut.weights_after / _MIB for cut in cuts]),
    ):
        weights.plot(work, values, label=label)
    plain_ticks(weights, "y")
    weights.set_ylabel("weights (MiB)")
    weights.set_xlabel("estimated work before the cut (%)")
    if cuts:
        weights.legend()
    for axes in (sizes, weights):
        axes.grid(alpha=0.3)
    save(figure, path)
