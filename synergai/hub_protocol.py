"""What the two ends of the hub protocol, gateway and agent, have to agree on."""

from __future__ import annotations

from typing import Final

HUB_VERSION: Final = 1
"""Raised when an older agent or gateway would not understand."""
SESSION_METADATA: Final = "synergai-session"
"""What the call ``Work`` shows the session of the registration under."""
MISSED_HEARTBEATS: Final = 3
"""Whoever has missed so many signs of life of the other counts it as lost."""
