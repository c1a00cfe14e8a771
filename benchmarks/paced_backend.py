"""ONNX Runtime at the pace of another machine: a query waits until its time has passed.

An agent gets it in the place of the backend of the same name by ``sitecustomize.py``, which
`write_site` writes. All of its engines have the same file, whose name is in the environment. The
memory is emulated as well: the agent does not measure that of its engine hosts.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT
from synergai.errors import EngineUnusable
from synergai.names import engine_of_stage, is_stage, stage_positions
from worker_agent.backends.onnxruntime import OnnxRuntimeBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker_agent.backends import Array
    from worker_agent.providers import ProviderChoice

_VARIABLE: Final = "EMULATED_WORKER"
_SITE: Final = """\
from synergai.runtime import resources

resources.rss_bytes = resources.peak_rss_bytes = lambda *_: 0

from worker_agent.backends import BACKENDS

BACKENDS.add({"onnxruntime": "benchmarks.paced_backend:PacedBackend"})
"""
_LEAD_S: Final = 0.001
_DUE: Final = struct.Struct("d")


class EmulatedWorker(Struct, frozen=True):
    """What a worker can do.

    Attributes:
        heads: seconds of the part of each engine before each of its cuts, from 0 on.
        memory_bytes: what a planner may expect of one stage; others are not counted to it, such as
            the one that it replaces.
    """

    heads: dict[str, tuple[float, ...]]
    memory_bytes: float


def write_site(folder: Path) -> None:
    """Write a folder for ``PYTHONPATH``."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_SITE)


def write_worker(file: Path, worker: EmulatedWorker) -> None:
    """Set what a worker can do from now on."""
    written = file.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(worker))
    written.replace(file)


def emulated(site: Path, file: Path) -> list[str]:
    """Return the command that runs an agent as the worker of a file."""
    path = os.pathsep.join([str(site), str(Path(__file__).parents[1])])
    return ["env", f"PYTHONPATH={path}", f"{_VARIABLE}={file}"]


class PacedBackend(OnnxRuntimeBackend):
    """A model whose queries follow an absolute schedule: one that ends late shortens the next.

    All engines of a worker share one schedule, which is in a file next to the worker's.
    """

    def __init__(self, path: Path, threads: int, provider: ProviderChoice | None = None) -> None:
        self._file = Path(os.environ[_VARIABLE])
        if HOST_BYTES + SESSION_PER_WEIGHT * path.stat().st_size > self._worker().memory_bytes:
            raise EngineUnusable("the emulated worker has not enough memory")
        super().__init__(path, threads, provider)
        self._path = path
        self._schedule = os.open(self._file.with_suffix(".due"), os.O_RDWR | os.O_CREAT)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute the named outputs, and return them when the time of a query is over."""
        begun = time.monotonic()
        answer = super().run(inputs, outputs)
        if (ahead_s := self._due(begun) - time.monotonic()) > 0:
            time.sleep(ahead_s)
        return answer

    def _due(self, begun: float) -> float:
        """Return when the worker has computed a query, besides all that came before."""
        fcntl.flock(self._schedule, fcntl.LOCK_EX)
        try:
            (before,) = _DUE.unpack(os.pread(self._schedule, _DUE.size, 0) or bytes(_DUE.size))
            due = max(before, begun - _LEAD_S) + self._query_s()
            os.pwrite(self._schedule, _DUE.pack(due), 0)
        finally:
            fcntl.flock(self._schedule, fcntl.LOCK_UN)
        return float(due)

    def _query_s(self) -> float:
        worker = self._worker()
        # The model is in the folder of its engine, or of a version of it.
        for folder in self._path.parts:
            engine = engine_of_stage(folder)
            if (heads := worker.heads.get(engine)) is not None:
                first, last = stage_positions(folder) if is_stage(folder) else (0, len(heads) - 1)
                return heads[last] - heads[first]
        raise EngineUnusable(f"the time of {self._path} is not known")

    def _worker(self) -> EmulatedWorker:
        return msgspec.json.decode(self._file.read_bytes(), type=EmulatedWorker)
