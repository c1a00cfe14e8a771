"""Constants of the hub protocol that gateway and agent must agree on.

Both ends detect a dead peer by heartbeats: the agent sends them at the interval set by the gateway,
which acknowledges each. With each, the agent also sends an empty report on its work socket, which a
gateway reads in time even while gRPC calls queue up.

Their tolerances differ. Queries of a silent worker run late, so the gateway reassigns them soon. An
agent that leaves its gateway aborts everything it runs, while a dead gateway usually shows as a
broken connection; a silent one has rather stalled and resumes. It leaves a silent gateway
early only for another one that listens to agents, which the standbys of a leader do not.
"""

from __future__ import annotations

from typing import Final

HUB_VERSION: Final = 3
"""Protocol version; incremented on incompatible changes."""
WORKER_LOST_AFTER: Final = 3
"""Number of missed heartbeats after which a worker is lost."""
GATEWAY_SILENT_AFTER: Final = 3
"""Number of consecutive unacknowledged heartbeats after which agents look for another gateway."""
GATEWAY_LOST_AFTER: Final = 20
"""Number of consecutive unacknowledged heartbeats after which a gateway is lost."""
