"""Self-check of an engine for ``synergai engines add``, which loads it as an agent does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.domain import Configuration, EngineName, Session
from synergai.errors import EngineUnusable, Unavailable
from synergai.models.descriptions import Description
from synergai.runtime.text import printable
from worker_agent.hosts.sync_client import HostClient

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S: Final = 300.0


def check_engine(models: Path, name: str) -> Description:
    """Load an engine once and describe it.

    Args:
        models: the model directory.
        name: the engine's name.

    Raises:
        BackendMissing: its backend is not installed here.
        EngineUnusable: it cannot be loaded.
    """
    session = Session(EngineName(name), Configuration(1))
    try:
        with HostClient(models, session, timeout=_TIMEOUT_S) as host:
            ready = host.ready
    except Unavailable as error:
        raise EngineUnusable(f"engine {name!r} cannot be loaded: {error}") from None
    return Description(ready.inputs, ready.outputs, ready.samples, printable(ready.unverified))
