"""Inference runtimes that are installed, found without importing them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from synergai.models.runtimes import MODULES

_BUILT_IN: Final = "emulated"


def installed_backends() -> frozenset[str]:
    """Return the names of the project's own backends whose runtime is installed."""
    return frozenset(
        {_BUILT_IN} | {name for name, modules in MODULES.items() if any(map(find_spec, modules))}
    )
