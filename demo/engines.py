"""Engines of the zoo in a model directory of one run's own.

The user's own engines, in ``models``, would be inspected and served as well.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from demo.steps import console
from profiler.zoo.recipes import build, is_built
from synergai.models.directory import ModelDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def provide(names: Iterable[str], built: Path, models: Path) -> None:
    """Build the engines that are not in `built` there, and share their files with `models`."""
    for name in names:
        if not is_built(name, built):
            build(name, built)
        shutil.copytree(built / name, models / name, copy_function=link_or_copy)
        definition = ModelDirectory(models).get(name)
        accuracy = f", accuracy {definition.accuracy:.2%}" if definition.accuracy else ""
        console.print(f"  {name}: {definition.title}{accuracy}")


def link_or_copy(source: str, target: str) -> None:
    """Link a file, or copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
