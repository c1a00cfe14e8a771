"""Folders of Triton's model repositories: what is ignored in them, and why one has no model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CONFIG_FILE: Final = "config.pbtxt"
_ENSEMBLE: Final = re.compile(
    rb'^[ \t]*(platform\s*:\s*"ensemble"|ensemble_scheduling\b)', re.MULTILINE
)
_PYTHON: Final = re.compile(rb'^[ \t]*backend\s*:\s*"python"', re.MULTILINE)
_MAX_CONFIG_BYTES: Final = 1 << 20


def ignored_configs(folders: Iterable[Path]) -> list[str]:
    """Return a note for each ``config.pbtxt`` of these folders of engines or versions."""
    configs = dict.fromkeys(map(_find_config, folders))
    return [
        f"{config} is ignored: max_batch in engine.toml replaces max_batch_size, 'synergai engines "
        "rollout' version_policy, and --places instance_group"
        for config in configs
        if config is not None
    ]


def why_no_model(folder: Path) -> str:
    """Return why a folder of an engine or version has no model file; empty if that is unknown."""
    config, text = _find_config(folder), b""
    if config is not None:
        with config.open("rb") as file:
            text = file.read(_MAX_CONFIG_BYTES)
    if _ENSEMBLE.search(text):
        return (
            f"its {_CONFIG_FILE} describes an ensemble, which is not supported: serve the models "
            "of its steps as engines, and let the client call one after the other"
        )
    if _PYTHON.search(text) or _has_file(folder / "model.py"):
        return (
            "it is a model of Triton's Python backend, and Python code is not run: export the "
            "model to ONNX, and move other code to the client"
        )
    return ""


def _find_config(folder: Path) -> Path | None:
    """Return the ``config.pbtxt`` of a folder; of a version's, that of the engine."""
    engine = folder.parent if folder.name.isdecimal() else folder
    config = engine / _CONFIG_FILE
    return config if _has_file(config) else None


def _has_file(path: Path) -> bool:
    """Return whether this is a file; not if its folder may not be entered."""
    try:
        return path.is_file()
    except PermissionError:
        return False
