"""An engine that is cut into stages."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from profiler.cutting.stages import cut_engine, split_engine
from profiler.zoo import recipes as zoo

ENGINE: Final = "onnx_digits"


def build_stages(folder: Path) -> dict[str, Path]:
    """Return model directories: `whole` has the engine, `stage-0` to `stage-2` a stage each."""
    built = folder / "built"
    zoo.build(ENGINE, built, lambda _: None)
    engine = cut_engine(built, ENGINE)
    stages = split_engine(engine, built, ["conv1/pool", "conv2/pool"], lambda *_: None)
    folders = {"whole": folder / "whole"}
    shutil.copytree(built / ENGINE, folders["whole"] / ENGINE)
    for number, stage in enumerate(stages):
        folders[f"stage-{number}"] = folder / f"stage-{number}"
        shutil.copytree(built / stage.name, folder / f"stage-{number}" / stage.name)
    return folders


def all_stages(folders: dict[str, Path], folder: Path) -> Path:
    return join_stages(folders, range(len(folders) - 1), folder)


def join_stages(folders: dict[str, Path], stages: Iterable[int], folder: Path) -> Path:
    """Return a model directory with some of the stages."""
    for number in stages:
        shutil.copytree(folders[f"stage-{number}"], folder, dirs_exist_ok=True)
    return folder
