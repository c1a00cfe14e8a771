"""The latest leader among the gateways of a cluster, remembered across restarts of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.errors import Unavailable
from synergai.runtime.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

LEADER_FILE: Final = "leader.json"


class _Leader(Struct, frozen=True):
    cluster: str
    epoch: int


class LatestLeader:
    """The highest epoch that the agent has seen in its cluster. The methods block on files."""

    def __init__(self, state: Path) -> None:
        remedy = "Remove it: the agent then obeys any gateway that it is told of"
        self._file = StateFile(state / LEADER_FILE, _Leader, remedy)

    def follow(self, cluster: str, epoch: int) -> None:
        """Remember the gateway as the leader."""
        with self._file.locked():
            latest = self._file.read()
            if latest is not None and latest.cluster == cluster:
                if epoch < latest.epoch:
                    raise Unavailable(
                        f"this gateway led in epoch {epoch}, and another one leads since epoch "
                        f"{latest.epoch}. After a restore of the database from a backup, remove "
                        f"{self._file.path}"
                    )
                if epoch == latest.epoch:
                    return
            self._file.write(_Leader(cluster, epoch))
