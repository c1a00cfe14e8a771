"""SynergAI: inference under QoS deadlines on heterogeneous machines.

The public API: `Client`, the types that it returns and the errors that it raises. Names are
imported on first access, which keeps processes that use only some of them small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synergai.client.client import Client as Client
    from synergai.client.fleet import VersionFigures as VersionFigures
    from synergai.client.fleet import VersionPolicy as VersionPolicy
    from synergai.client.fleet import WorkerState as WorkerState
    from synergai.client.fleet import WorkerStatus as WorkerStatus
    from synergai.client.jobs import JobHandle as JobHandle
    from synergai.client.requests import JobOptions as JobOptions
    from synergai.client.requests import QueryOptions as QueryOptions
    from synergai.client.streaming import InferResult as InferResult
    from synergai.client.sync import SyncClient as SyncClient
    from synergai.client.sync import SyncJobHandle as SyncJobHandle
    from synergai.data.items import JobResult as JobResult
    from synergai.data.items import NamedInput as NamedInput
    from synergai.data.result_directory import read_results as read_results
    from synergai.domain import Configuration as Configuration
    from synergai.domain import Engine as Engine
    from synergai.domain import TensorSpec as TensorSpec
    from synergai.errors import Cancelled as Cancelled
    from synergai.errors import Conflict as Conflict
    from synergai.errors import DeadlineExceeded as DeadlineExceeded
    from synergai.errors import EngineUnusable as EngineUnusable
    from synergai.errors import InternalError as InternalError
    from synergai.errors import InvalidInput as InvalidInput
    from synergai.errors import NotFound as NotFound
    from synergai.errors import NotSupported as NotSupported
    from synergai.errors import Overloaded as Overloaded
    from synergai.errors import PermissionDenied as PermissionDenied
    from synergai.errors import SynergaiError as SynergaiError
    from synergai.errors import Unauthenticated as Unauthenticated
    from synergai.errors import Unavailable as Unavailable
    from synergai.jobs import Execution as Execution
    from synergai.jobs import JobSpec as JobSpec
    from synergai.jobs import JobState as JobState
    from synergai.jobs import JobStatus as JobStatus

_EXPORTS = {
    "synergai.client.client": ("Client",),
    "synergai.client.fleet": (
        "VersionFigures",
        "VersionPolicy",
        "WorkerState",
        "WorkerStatus",
    ),
    "synergai.client.jobs": ("JobHandle",),
    "synergai.client.requests": ("JobOptions", "QueryOptions"),
    "synergai.client.streaming": ("InferResult",),
    "synergai.client.sync": ("SyncClient", "SyncJobHandle"),
    "synergai.data.result_directory": ("read_results",),
    "synergai.data.items": ("JobResult", "NamedInput"),
    "synergai.domain": ("Configuration", "Engine", "TensorSpec"),
    "synergai.errors": (
        "Cancelled",
        "Conflict",
        "DeadlineExceeded",
        "EngineUnusable",
        "InternalError",
        "InvalidInput",
        "NotFound",
        "NotSupported",
        "Overloaded",
        "PermissionDenied",
        "SynergaiError",
        "Unauthenticated",
        "Unavailable",
    ),
    "synergai.jobs": ("Execution", "JobSpec", "JobState", "JobStatus"),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
