"""All backends in a real engine host."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from onnx import helper

from profiler.measuring.host_client import HostClient
from synergai.domain import UNKNOWN_RANK, Configuration, EngineName, Outcome, Session, TensorSpec
from synergai.errors import EngineUnusable
from synergai.models.samples import write_samples
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.wire.arrays import read_outputs
from tests.integration.worker_agent.conftest import request
from tests.tiny_onnx import floats, new_model, save_model
from tests.tiny_tensorflow import (
    FLOAT_TYPE,
    graph,
    needs_tensorflow,
    node,
    of_tensorflow,
    saved_model,
)
from tests.tiny_tflite import save_sum
from worker_agent.providers import ProviderChoice

HostOf: TypeAlias = Callable[[str], HostClient]

SIDE = 512
"""Rows and columns of the matrix whose product two threads share."""
QUERIES = 100


def session(engine: str, threads: int = 1) -> Session:
    return Session(EngineName(engine), Configuration(threads))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with the same matrix product for each runtime, and a few others."""
    models = tmp_path_factory.mktemp("models")
    for engine in ("tflite", "tensorflow", "onnxruntime", "sum", "int8", "damaged"):
        (models / engine).mkdir()
    save_sum(models / "tflite" / "m.tflite", width=SIDE, matrix=True)
    further = node("z", "Neg", "y", T=FLOAT_TYPE)
    (models / "tensorflow" / "m.pb").write_bytes(graph(matrix=SIDE) + further)
    (models / "tensorflow" / "engine.toml").write_text('inputs = ["x:0"]\noutputs = ["y:0"]')
    x, y = floats(["n", SIDE], "x", "y")
    product, ones = helper.make_node("MatMul", ["x", "w"], ["y"]), np.ones((SIDE, SIDE), np.float32)
    save_model(models / "onnxruntime" / "m.onnx", new_model([product], [x], [y], {"w": ones}))
    save_sum(models / "sum" / "m.tflite")
    save_sum(models / "int8" / "m.tflite", int8=True, dynamic=False)
    negated = node("x", "Placeholder", dtype=FLOAT_TYPE) + node("y", "Neg", "x", T=FLOAT_TYPE)
    saved = saved_model(negated, "train", outputs=("e", "c", "d", "b", "f"), shape=None)
    (models / "saved").mkdir()
    (models / "saved" / "saved_model.pb").write_bytes(saved)
    (models / "saved" / "engine.toml").write_text('signature = "train"')
    content = (models / "sum" / "m.tflite").read_bytes()
    (models / "damaged" / "m.tflite").write_bytes(content[: len(content) // 2])
    for engine, name in (("tflite", "x"), ("tensorflow", "x:0"), ("onnxruntime", "x")):
        write_samples(models / engine, {name: np.ones((1, SIDE, SIDE), np.float32)})
    return models


@pytest.fixture(scope="module")
def host_of(fleet: Path) -> Iterator[HostOf]:
    """Return the host of an engine with one thread, which the tests of this file share."""
    with ExitStack() as stack:
        yield cache(lambda engine: stack.enter_context(HostClient(fleet, session(engine))))


def answer(host: HostClient, name: str, array: NDArray[Any]) -> NDArray[Any]:
    ended, response = host.query(request(array, name=name))
    assert ended.outcome is Outcome.COMPLETED, ended.detail
    result, *_ = read_outputs(ModelInferResponse.FromString(response)).values()
    return result


def test_quantised_tensors_travel_as_the_integers_they_are(fleet: Path) -> None:
    with HostClient(fleet, session("int8")) as host:
        assert host.ready.inputs == (TensorSpec("x", "INT8", (1, 2)),)
        # With the zero point 3, the stored 5 is 2 steps, and 4 steps are the stored 7.
        assert answer(host, "x", np.array([[5, 3]], np.int8)).tolist() == [[7, 3]]


@pytest.mark.parametrize("name", ["XNNPACK", "Builtin"])
def test_tflite_file_is_served_with_each_provider_for_batches_of_any_size(
    fleet: Path, name: str
) -> None:
    provider = ProviderChoice(name)
    with HostClient(fleet, session("sum"), provider=provider) as host:
        assert host.ready.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
        for rows in (1, 3, 2):
            array = np.full((rows, 2), rows, np.float32)
            assert (answer(host, "x", array) == 2 * array).all()


def test_loaded_tflite_file_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_sum(tmp_path / "m" / "m.tflite", width=SIDE, matrix=True)
    provider = ProviderChoice("Builtin")  # reads the weights in each query
    with HostClient(tmp_path, session("m"), provider=provider) as host:
        (tmp_path / "m" / "m.tflite").write_bytes(b"")
        assert (answer(host, "x", np.ones((1, SIDE), np.float32)) == SIDE).all()


def test_damaged_tflite_file_is_refused_with_its_name(fleet: Path) -> None:
    with pytest.raises(EngineUnusable, match=r"cannot load m\.tflite: The model is not a valid"):
        HostClient(fleet, session("damaged"))


@needs_tensorflow
def test_frozen_graph_takes_and_gives_the_tensors_that_its_definition_names(
    host_of: HostOf,
) -> None:
    host = host_of("tensorflow")
    assert host.ready.inputs == (TensorSpec("x:0", "FP32", (-1, SIDE)),)
    assert host.ready.outputs == (TensorSpec("y:0", "FP32", (-1, SIDE)),)
    row = np.ones((1, SIDE), np.float32)
    assert (answer(host, "x:0", row) == SIDE).all()


def runtimes(host: HostClient) -> set[str]:
    files = [mapped.path for mapped in psutil.Process(host.pid).memory_maps()]
    packages = ("ai_edge_litert", "matplotlib", "onnxruntime", "sklearn", "tensorflow")
    return {package for package in packages if any(f"/{package}/" in file for file in files)}


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        ("onnxruntime", "onnxruntime"),
        ("tflite", "ai_edge_litert"),
        pytest.param("tensorflow", "tensorflow", marks=needs_tensorflow),
    ],
)
def test_host_loads_its_own_runtime_and_no_other(
    host_of: HostOf, engine: str, package: str
) -> None:
    assert runtimes(host_of(engine)) == {package}


@needs_tensorflow
def test_saved_model_is_served_by_the_sorted_names_of_its_chosen_signature(fleet: Path) -> None:
    # The file maps names to tensors: TensorFlow lists them in another order in each process.
    with HostClient(fleet, session("saved")) as host:
        assert host.ready.inputs == (TensorSpec("a", "FP32", UNKNOWN_RANK),)
        assert [spec.name for spec in host.ready.outputs] == ["b", "c", "d", "e", "f"]
        for shape in ((), (3,), (2, 1, 3)):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            assert answer(host, "a", array).tolist() == (-array).tolist()


def usage(host: HostClient) -> tuple[float, float]:
    """How a host computes: processors that it kept busy, and threads that shared the work.

    The first is processor time by time that passed, and lower on a machine with other work. The
    second is all threads' processor time in units of the busiest one's, whatever else there is.
    """
    before, begin = _processor_s(host.pid), time.monotonic()
    host.run_samples(0, QUERIES)
    after, passed = _processor_s(host.pid), time.monotonic() - begin
    spent = [after[thread] - before.get(thread, 0.0) for thread in after]
    return sum(spent) / passed, sum(spent) / max(spent)


def _processor_s(pid: int) -> dict[str, float]:
    """Processor time of each thread; a thread that ends meanwhile is left out."""
    spent = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            spent[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent


@pytest.mark.parametrize("backend", ["onnxruntime", "tflite", *of_tensorflow("tensorflow")])
def test_as_many_threads_compute_as_the_session_has(
    fleet: Path, host_of: HostOf, backend: str
) -> None:
    processors, sharing_one = usage(host_of(backend))
    assert processors < 1.1
    # The first thread takes work over from one whose processor is busy with something else, which
    # on a busy machine may be most of the times.
    with HostClient(fleet, session(backend, 2)) as host:
        assert any(usage(host)[1] > sharing_one + 0.25 for _ in range(20))
