"""Default gateway address and TLS authority, shared by all commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TARGET_VARIABLE: Final = "SYNERGAI_TARGET"
TLS_CA_VARIABLE: Final = "SYNERGAI_TLS_CA"
"""Environment variables read by every command; a command's own variables and options win."""
DEFAULT_TARGET: Final = "127.0.0.1:8001"


def default_target() -> str:
    """Return ``host:port`` of the gateway from the environment, or `DEFAULT_TARGET`."""
    return os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET


def default_tls_ca() -> Path | None:
    """Return the path of the TLS authority (PEM) from the environment; None for plaintext."""
    path = os.environ.get(TLS_CA_VARIABLE)
    return Path(path) if path else None
