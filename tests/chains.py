"""Engines in stages whose times and tensors are chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onnx import helper

from synergai.names import stage_name
from tests.tiny_onnx import floats, new_model, save_model

ENGINE: Final = "chain"


def write_stages(
    folder: Path,
    stages: Sequence[tuple[int, int]],
    *,
    segment_s: float,
    tensor_bytes: int,
    segments: int,
    setup_s: float = 0.05,
) -> Path:
    """Write stages of an engine as emulated engines, which echo their input; return the folder.

    Args:
        stages: first and last cut of each; between two cuts is a segment.
        segment_s: time of a segment for one query.
        segments: those of the whole engine.
    """
    for first, last in stages:
        whole = (first, last) == (0, segments)
        name = ENGINE if whole else stage_name(ENGINE, first, last)
        engine = folder / name
        begin, end = floats(["n", tensor_bytes // 4], f"cut{first}", f"cut{last}")
        node = helper.make_node("Identity", [begin.name], [end.name])
        save_model(engine / "model.onnx", new_model([node], [begin], [end]))
        part = "" if whole else f'stage_of = "{"ab" * 32}"\nstage_end = {segments}\n'
        (engine / "engine.toml").write_text(f'backend = "emulated"\nfile = "model.toml"\n{part}')
        # The description of a model is remembered by the content of this file.
        (engine / "model.toml").write_text(
            f"# {name}\n"
            'model = "model.onnx"\n[[configurations]]\nthreads = 1\n'
            f"query_s = {segment_s * (last - first)}\nsetup_s = {setup_s}\n"
        )
    return folder
