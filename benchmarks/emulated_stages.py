"""Engines in stages that take their time without computing: many on the cores of one machine."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from synergai.names import stage_name
from worker_agent.backends.emulated import SLOWDOWN_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

INPUT: Final = "cut0"


def write_stages(
    models: Path,
    engine: str,
    sizes: Sequence[int],
    seconds: Mapping[tuple[int, int], Sequence[float]],
    stages: Sequence[tuple[int, int]],
) -> None:
    """Write stages of an engine into a model directory; the one from end to end is the engine.

    Args:
        sizes: bytes of the tensors of a query by place, the inputs and the outputs included.
        seconds: time of a query in each stage, by the number of threads less 1.
    """
    end = len(sizes) - 1
    whole = _model(sizes, seconds[0, end], (0, end)).encode()
    digest = sha256(whole).hexdigest()
    for first, last in stages:
        is_whole = (first, last) == (0, end)
        folder = models / (engine if is_whole else stage_name(engine, first, last))
        folder.mkdir(parents=True)
        (folder / "model.toml").write_text(_model(sizes, seconds[first, last], (first, last)))
        keys = f'stage_of = "{digest}"\nstage_end = {end}\n'
        if is_whole:
            keys = f'sha256 = "{digest}"\n'
        (folder / "engine.toml").write_text(f'backend = "emulated"\nfile = "model.toml"\n{keys}')


def slow_down(models: Path, factor: float) -> None:
    """Let all queries of the engines in a model directory take so many times as long."""
    for folder in models.iterdir():
        (folder / SLOWDOWN_FILE).write_text(str(factor))


def _model(sizes: Sequence[int], seconds: Sequence[float], stage: tuple[int, int]) -> str:
    ends = "".join(
        f'{key} = {{name = "cut{place}", values = {max(1, sizes[place] // 4)}}}\n'
        for key, place in zip(("input", "output"), stage, strict=True)
    )
    return ends + "".join(
        f"[[configurations]]\nthreads = {threads}\nquery_s = {query_s!r}\nsetup_s = 0.0\n"
        for threads, query_s in enumerate(seconds, 1)
    )
