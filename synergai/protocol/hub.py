"""What the two ends of the hub protocol, gateway and agent, have to agree on.

Both give signs of life: the agent a heartbeat at the interval that the gateway names, the gateway
an acknowledgement of each. The two are not equally patient. A worker that is silent makes its
queries late, so others soon get them. An agent that leaves a silent gateway gives up all that it
runs, while a gateway that is gone mostly shows by a broken connection; what is silent has rather
been held up, and goes on.
"""

from __future__ import annotations

from typing import Final

HUB_VERSION: Final = 1
"""Raised when an older agent or gateway would not understand."""
CONNECTION_METADATA: Final = "synergai-session"
"""What the call ``Work`` shows the session of the registration under."""
WORKER_LOST_AFTER: Final = 3
"""A worker of which nothing was heard for so many heartbeats is lost."""
GATEWAY_LOST_AFTER: Final = 20
"""A gateway that has left so many heartbeats in a row unanswered is lost."""
