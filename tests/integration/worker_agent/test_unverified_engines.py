"""Models that accept few of the inputs that their tensors allow, in real engine hosts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from onnx import TensorProto, helper

import synergai
from demo.local_fleet import LocalFleet
from profiler.measuring.host_client import HostClient
from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from tests.integration.worker_agent.conftest import request, save, tensor
from tests.tiny_tensorflow import STRING_TYPE, needs_tensorflow, node, of_tensorflow
from tests.tiny_tflite import save_square

FLOAT, STRING = TensorProto.FLOAT, TensorProto.STRING
HostOf: TypeAlias = Callable[[str], HostClient]


def save_reshape(folder: Path, *sizes: int) -> None:
    """Save a model that reshapes x of [n] to `sizes`; the runtime calls other n a failure."""
    shape = helper.make_tensor("sizes", TensorProto.INT64, [len(sizes)], sizes)
    save(
        folder,
        [
            helper.make_node("Constant", [], ["sizes"], value=shape),
            helper.make_node("Reshape", ["x", "sizes"], ["y"]),
        ],
        [tensor("x", FLOAT, ["n"])],
        [tensor("y", FLOAT, list(sizes))],
    )


@pytest.fixture(scope="module")
def particular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory.

    - ``pairs`` and ``tflite``: n must be 2;
    - ``numbers`` and ``frozen``: x of BYTES, which must be numbers;
    - ``odd``: x of [n], where n must be 77.
    """
    models = tmp_path_factory.mktemp("models")
    save_reshape(models / "pairs", -1, 2)
    save_reshape(models / "odd", 7, 11)
    save(
        models / "numbers",
        [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)],
        [tensor("x", STRING, ["n"])],
        [tensor("y", FLOAT, ["n"])],
    )
    for name in ("tflite", "frozen"):
        (models / name).mkdir()
    save_square(models / "tflite" / "m.tflite")
    text = node("x", "Placeholder", dtype=STRING_TYPE) + node("y", "StringToNumber", "x")
    (models / "frozen" / "m.pb").write_bytes(text)
    return models


@pytest.fixture(scope="module")
def host_of(particular: Path) -> Iterator[HostOf]:
    """Return the host of an engine, which the tests of this file share."""
    with ExitStack() as stack:

        def start(engine: str) -> HostClient:
            session = Session(EngineName(engine), Configuration(1))
            return stack.enter_context(HostClient(particular, session))

        yield cache(start)


@pytest.mark.parametrize("engine", ["pairs", "numbers", "tflite", *of_tensorflow("frozen")])
def test_synthetic_samples_are_those_that_the_model_accepts(host_of: HostOf, engine: str) -> None:
    host = host_of(engine)
    assert (host.ready.unverified, host.ready.samples) == ("", 8)
    assert host.run_samples(0, 16).tally.done == 16


def test_model_that_accepts_no_synthetic_input_is_loaded_unverified(host_of: HostOf) -> None:
    host = host_of("odd")
    assert host.ready.unverified.startswith(
        "the model fails on synthetic inputs: ONNX Runtime failed: Reshape node ''"
    )
    assert "cannot be reshaped to the requested shape" in host.ready.unverified
    assert host.query(request(np.ones(77, np.float32)))[0].outcome is Outcome.COMPLETED
    with pytest.raises(Exception, match=r"no samples; add a samples\.npz"):
        host.run_samples(0)


@pytest.mark.parametrize("engine", ["pairs", "odd"])
def test_query_that_the_runtime_fails_on_is_to_blame_unless_the_engine_is(
    host_of: HostOf, engine: str
) -> None:
    ended, _ = host_of(engine).query(request(np.ones(3, np.float32)))
    assert (ended.outcome, ended.fault) == (Outcome.FAILED, Fault.BAD_INPUT)


@needs_tensorflow
def test_failed_query_of_tensorflow_says_why(host_of: HostOf) -> None:
    message = ModelInferRequest(
        inputs=[ModelInferRequest.InferInputTensor(name="x:0", datatype="BYTES", shape=[1])],
        raw_input_contents=[b"\3\0\0\0abc"],
    )
    ended, _ = host_of("frozen").query(message.SerializeToString())
    assert ended.detail.startswith("TensorFlow rejects the inputs: node 'y")
    assert ended.detail.endswith("': StringToNumberOp could not correctly convert string: abc")


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    return subprocess.run(
        [sys.executable, "-m", "synergai", "engines", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )


def test_added_engine_is_checked_and_called_unverified_with_what_to_do(
    particular: Path, tmp_path: Path
) -> None:
    added = run(tmp_path, "add", str(particular / "odd" / "model.onnx"))
    assert added.returncode == 0
    assert added.stderr == "a server that runs on this model directory finds it within seconds\n"
    assert added.stdout.startswith(
        "odd: models/odd/model.onnx\nunverified: the model fails on synthetic inputs"
    )
    assert added.stdout.endswith("add a samples.npz (docs/guide/engines.md).\n")


@pytest.fixture(scope="module")
def fleet(particular: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    path = tmp_path_factory.mktemp("fleet")
    shutil.copytree(particular / "odd", path / "models" / "odd")
    with LocalFleet(path) as fleet:
        fleet.start_gateway()
        fleet.start_agent("one", models=path / "models", options=("--threads", "1"))
        fleet.wait_for_workers(1)
        yield fleet


async def test_unverified_engine_is_served_and_says_so(fleet: LocalFleet) -> None:
    async with synergai.Client(fleet.address) as client:
        for _ in range(2):
            with pytest.raises(InvalidInput, match="cannot be reshaped"):
                await client.infer("odd", {"x": np.ones(3, np.float32)})
            result = await client.infer("odd", {"x": np.ones(77, np.float32)})
            assert result["y"].shape == (7, 11)
        assert "fails on synthetic inputs" in (await client.engine("odd")).unverified
        (worker,) = await client.workers()
        assert [engine.name for engine in worker.engines if engine.unverified] == ["odd"]
    log = fleet.log("one").read_text()
    assert "engine odd is served unverified: the model fails on synthetic inputs" in log
    assert "add a samples.npz" in log


async def test_job_of_an_unverified_engine_is_refused_with_what_to_do(fleet: LocalFleet) -> None:
    async with synergai.Client(fleet.address) as client:
        with pytest.raises(synergai.EngineUnusable, match=r"add a samples\.npz"):
            await client.submit("odd", queries=5)
