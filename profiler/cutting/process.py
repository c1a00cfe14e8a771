"""Cutting in a child process with limits: a graph is not trusted, and ``onnx`` is native code."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from profiler.cutting.cuts import Cut  # noqa: TC001 - msgspec reads the annotations
from profiler.cutting.heads import StageHead  # noqa: TC001 - msgspec reads the annotations
from synergai.domain import TensorSpec  # noqa: TC001 - msgspec reads the annotations
from synergai.errors import InvalidInput, NotFound
from synergai.models.formats.model_files import list_files, size_bytes
from synergai.runtime.resources import die_with_parent, limit_data
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S: Final = 120.0
_BYTES: Final = 1 << 30
_BYTES_PER_MODEL_BYTE: Final = 8
"""Memory of the process: the model is parsed, inferred and copied."""


class StageFile(Struct, frozen=True):
    """A stage to write.

    Attributes:
        first: number of the cut at which it begins; 0 for the inputs of the model.
        last: that at which it ends; 0 for the outputs of the model.
        head: of the early exit at its end, if it has one.
        features: cuts whose pooled tensors are outputs as well, to train heads on.
    """

    first: int
    last: int
    path: str
    head: StageHead | None = None
    features: tuple[int, ...] = ()


class _Order(Struct, frozen=True):
    model: str
    parent: int
    data_bytes: int
    in_one_file: bool
    digest: str = ""
    stages: tuple[StageFile, ...] = ()


class ModelCuts(Struct, frozen=True):
    """What a model file says about its cuts.

    Attributes:
        cuts: in the order of the data flow.
        refusal: why it cannot be cut; empty if it can.
        products: estimated computation of a query, in products; 0 if it cannot be cut.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    cuts: tuple[Cut, ...] = ()
    refusal: str = ""
    products: float = 0.0


def read_cuts(model: Path) -> ModelCuts:
    """Return the cuts, inputs and outputs of the ONNX model in a file, even if it has no cuts.

    Raises:
        InvalidInput: the file cannot be read.
    """
    stat = model.stat() if model.exists() else None
    return _read_cuts(model, (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else ())


@lru_cache(maxsize=8)
def _read_cuts(model: Path, _stamp: tuple[int, ...]) -> ModelCuts:
    """Read a file once, until it changes."""
    return _run(model)


def find_cuts(model: Path) -> ModelCuts:
    """Return all cuts of the model in a file.

    Raises:
        InvalidInput: the model cannot be cut, and why.
    """
    return _checked(model, read_cuts(model))


def write_stages(model: Path, digest: str, stages: Sequence[StageFile]) -> None:
    """Write stages of the model in a file, each checked; `digest` is the SHA-256 of the model."""
    _checked(model, _run(model, digest, tuple(stages)))


def feature_name(cut: int) -> str:
    """Return the name of the output with the pooled tensor of a cut."""
    return f"synergai/features/{cut}"


def _checked(model: Path, found: ModelCuts) -> ModelCuts:
    if found.refusal:
        raise InvalidInput(f"{model.name} cannot be cut: {found.refusal}")
    return found


def _run(model: Path, digest: str = "", stages: tuple[StageFile, ...] = ()) -> ModelCuts:
    if model.suffix != ".onnx":
        raise InvalidInput(f"{model.name} cannot be cut: only ONNX models can")
    in_one_file = len(list_files(model)) == 1
    if find_spec("onnx") is None:
        raise NotFound(f"cutting needs the package 'onnx'; {pip_install('engines')}")
    limit = _BYTES + _BYTES_PER_MODEL_BYTE * size_bytes(model)
    return _run_child(_Order(str(model), os.getpid(), limit, in_one_file, digest, stages))


def _run_child(order: _Order) -> ModelCuts:
    name = Path(order.model).name
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode(order),
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(f"{name} cannot be cut within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise InvalidInput(
            f"{name} cannot be cut: the process that reads it ended with exit code "
            f"{done.returncode}"
        )
    return msgspec.json.decode(done.stdout, type=ModelCuts)


def _cut(order: _Order) -> ModelCuts:
    import onnx
    from google.protobuf.message import DecodeError

    from profiler.cutting import extraction, graph
    from profiler.onnx_file import read_ends

    found = ModelCuts()
    try:
        model = onnx.load_model(order.model, load_external_data=False)
        found = ModelCuts(*read_ends(model.graph))
        if not order.in_one_file:
            return replace(found, refusal="it has weights in other files; save it as one file")
        cuts, products = graph.find_cuts(model)
        at = {cut.position: cut for cut in cuts}
        for stage in order.stages:
            first, last = at.get(stage.first), at.get(stage.last)
            part = extraction.extract_stage(model, order.digest, first, last)
            for number in stage.features:
                extraction.add_features(part, at[number], feature_name(number))
            if last is not None and stage.head is not None:
                extraction.add_head(part, last, stage.head)
            Path(stage.path).write_bytes(part.SerializeToString(deterministic=True))
    except InvalidInput as error:
        return replace(found, refusal=str(error))
    except DecodeError:
        return ModelCuts(refusal="it is corrupt or not an ONNX file")
    except MemoryError:
        refusal = f"it needs more than {order.data_bytes >> 20:,} MiB of memory"
        return replace(found, refusal=refusal)
    return replace(found, cuts=cuts, products=products)


def main() -> int:
    """Read an order from standard input, and write the answer to standard output."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    die_with_parent(order.parent)
    limit_data(order.data_bytes)
    sys.stdout.buffer.write(msgspec.json.encode(_cut(order)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
