"""File that announces that a service is ready, and its addresses."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from synergai.errors import Unavailable
from synergai.runtime.atomic_file import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def ready_file(path: Path | None, **addresses: str) -> Iterator[None]:
    """Keep a JSON file with `addresses` and the process id at `path` while the context is open.

    The file is created atomically. Does nothing if `path` is None.
    """
    if path is None:
        yield
        return
    try:
        write_atomic(path, json.dumps({"pid": os.getpid(), **addresses}) + "\n")
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
