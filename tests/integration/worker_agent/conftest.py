"""A model directory with tiny real models, and pools of engine hosts for it."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike
from onnx import TensorProto, helper

from synergai.domain import Session
from synergai.models.directories import ModelDirectories
from synergai.wire.arrays import build_request
from tests.tiny_onnx import new_model, save_model
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.sessions import SessionChange

Pools: TypeAlias = Callable[..., HostPool]


class Changes(list[SessionChange]):
    """What pools have reported."""

    def states(self) -> list[tuple[Session, bool]]:
        return [(change.session, change.resident) for change in self]


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
async def new_pool(changes: Changes) -> AsyncIterator[Pools]:
    """Returns pools with room for any host, unless a test says otherwise, and closes them."""
    pools: list[HostPool] = []

    def create(models: Path, **given: Any) -> HostPool:
        options: dict[str, Any] = {"memory_bytes": 1 << 40, "on_change": changes.append} | given
        pools.append(HostPool(ModelDirectories(models), **options))
        return pools[-1]

    yield create
    for each in pools:
        await each.close()


def save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> Path:
    return save_model(folder / "model.onnx", new_model(nodes, inputs, outputs))


def tensor(name: str, kind: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def request(values: ArrayLike, *outputs: str, name: str = "x") -> bytes:
    """Return a serialised request with one input, of 32-bit floats unless it is an array."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values, np.float32)
    return build_request("", {name: array}, outputs=outputs).SerializeToString()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory.

    - ``twice``: x [n, 2] of FP32 gives y = x + x and z = -x;
    - ``labelled``: its answer is its input, and 3 of its 4 samples are labelled right;
    - ``texts``: its answer is its input, of BYTES;
    - ``bytes``: x [2] of UINT8 as FP32;
    - ``truncated``: half of a model; ``nothing``: an empty folder; ``impossible``: of a node
      that no runtime knows; ``unspeakable``: with a name that no gateway takes.
    """
    models = tmp_path_factory.mktemp("models")
    float_, string, uint8 = TensorProto.FLOAT, TensorProto.STRING, TensorProto.UINT8
    whole = save(
        models / "twice",
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        [tensor("x", float_, ["n", 2])],
        [tensor("y", float_, ["n", 2]), tensor("z", float_, ["n", 2])],
    )
    save(
        models / "labelled",
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor("x", float_, [1, 3])],
        [tensor("y", float_, [1, 3])],
    )
    np.savez(
        models / "labelled" / "samples.npz",
        x=np.eye(3, dtype=np.float32)[[0, 1, 2, 0]],
        labels=np.array([0, 1, 2, 1]),
    )
    unspeakable = "x" * 5000
    save(
        models / "unspeakable",
        [helper.make_node("Identity", [unspeakable], ["y"])],
        [tensor(unspeakable, float_, [1])],
        [tensor("y", float_, [1])],
    )
    save(
        models / "texts",
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor("x", string, ["n"])],
        [tensor("y", string, ["n"])],
    )
    save(
        models / "bytes",
        [helper.make_node("Cast", ["x"], ["y"], to=float_)],
        [tensor("x", uint8, [2])],
        [tensor("y", float_, [2])],
    )
    save(
        models / "impossible",
        [helper.make_node("NoSuchOperator", ["x"], ["y"])],
        [tensor("x", float_, [1])],
        [tensor("y", float_, [1])],
    )
    (models / "truncated").mkdir()
    (models / "truncated" / "model.onnx").write_bytes(whole.read_bytes()[:60])
    (models / "nothing").mkdir()
    return models


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with ``turns``: x of INT64, and a loop of so many turns; y is x."""
    models = tmp_path_factory.mktemp("endless")
    scalar: list[int | str] = []
    turn = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Identity", ["value"], ["same"]),
        ],
        "turn",
        [
            tensor("number", TensorProto.INT64, scalar),
            tensor("go_on", TensorProto.BOOL, scalar),
            tensor("value", TensorProto.INT64, scalar),
        ],
        [
            tensor("goes_on", TensorProto.BOOL, scalar),
            tensor("same", TensorProto.INT64, scalar),
        ],
    )
    save(
        models / "turns",
        [
            helper.make_node("Squeeze", ["x"], ["turns"]),
            helper.make_node("Equal", ["turns", "turns"], ["yes"]),
            helper.make_node("Loop", ["turns", "yes", "turns"], ["last"], body=turn),
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Reshape", ["last", "shape"], ["y"]),
        ],
        [tensor("x", TensorProto.INT64, [1])],
        [tensor("y", TensorProto.INT64, [1])],
    )
    return models
