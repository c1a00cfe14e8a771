"""Which gateway is asked, if no other one is named."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "SYNERGAI_TARGET"
"""Named for all commands alike; a command's own variable and option come before it."""


def default_target() -> str:
    """``host:port`` of the gateway that users and other commands ask."""
    return os.environ.get(VARIABLE) or "127.0.0.1:8001"
