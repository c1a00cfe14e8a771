"""Which gateway is asked, and how, where nobody says so; the same for all commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TARGET_VARIABLE: Final = "SYNERGAI_TARGET"
TLS_CA_VARIABLE: Final = "SYNERGAI_TLS_CA"
"""Named for all commands alike; a command's own variable and option come before them."""
DEFAULT_TARGET: Final = "127.0.0.1:8001"


def default_target() -> str:
    """``host:port`` of the gateway that is asked."""
    return os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET


def default_tls_ca() -> Path | None:
    """Authority (PEM) of its certificate; None if the connection is not encrypted."""
    named = os.environ.get(TLS_CA_VARIABLE)
    return Path(named) if named else None
