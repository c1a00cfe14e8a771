"""Import of pyarrow, which only Parquet files need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from synergai.errors import NotSupported
from synergai.runtime.text import pip_install


def import_arrow(module: str = "pyarrow") -> Any:
    """Return a module of pyarrow."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise NotSupported(
            f"Parquet files need pyarrow, which is not installed; {pip_install('data')}"
        ) from None
