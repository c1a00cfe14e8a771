"""Import of the optional libraries of the extra ``data``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from synergai.errors import NotSupported
from synergai.runtime.text import pip_install


def import_optional(module: str, purpose: str) -> Any:
    """Return the module, one of the extra ``data``."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != name:
            raise
        raise NotSupported(
            f"{purpose} need {name}, which is not installed; {pip_install('data')}"
        ) from None
