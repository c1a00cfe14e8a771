import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import TensorType
from numpy.typing import NDArray

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput, SynergaiError
from synergai.models.directory import EngineDefinition
from synergai.models.formats.inspect import check
from synergai.names import EngineName
from tests.tiny_tflite import save_reshape, save_sum, save_texts
from worker_agent import backends
from worker_agent.backends import tflite
from worker_agent.backends.tflite import TfliteBackend
from worker_agent.host.loading import SelfCheck


def texts(*values: str) -> NDArray[Any]:
    return np.array([value.encode() for value in values], object)


def test_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    backend = TfliteBackend(save_sum(tmp_path / "m.tflite", width=4, matrix=True), threads=1)
    assert backend.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert backend.outputs == (TensorSpec("y", "FP32", (-1, 4)),)


def test_quantised_tensors_are_integers(tmp_path: Path) -> None:
    model = save_sum(tmp_path / "m.tflite", dynamic=False, int8=True)
    assert TfliteBackend(model, threads=1).inputs == (TensorSpec("x", "INT8", (1, 2)),)


@pytest.mark.parametrize("kind", [TensorType.COMPLEX64, TensorType.RESOURCE, TensorType.VARIANT])
def test_tensor_of_an_unsupported_type_is_refused(tmp_path: Path, kind: int) -> None:
    model = save_reshape(tmp_path / "m.tflite", kind, [2], [2])
    with pytest.raises(EngineUnusable, match="'x' has a type that the Open Inference Protocol"):
        TfliteBackend(model, threads=1)


def test_missing_signature_is_refused_with_the_existing_ones(tmp_path: Path) -> None:
    model = save_sum(tmp_path / "m.tflite", signature="train")
    with pytest.raises(InvalidInput, match="no signature 'serve'; it has: train; choose one"):
        TfliteBackend(model, threads=1, signature="serve")


@pytest.mark.parametrize(
    "content", [b"", b"x", b"ONNX" * 100, b"\xff\xff\xff\xffTFL3" + b"\xff" * 64]
)
def test_file_that_is_no_tflite_file_is_refused_with_its_name(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(EngineUnusable, match=r"cannot load m\.tflite: "):
        TfliteBackend(path, threads=1)
    if b"TFL3" not in content:
        with pytest.raises(InvalidInput, match=r"m\.tflite is damaged, or not a TFLite file"):
            check(path)


def test_strings_of_any_number_follow_each_other(tmp_path: Path) -> None:
    backend = TfliteBackend(save_texts(tmp_path / "m.tflite", -1, 1), threads=1)
    for given in (texts("a"), texts("b", "cd"), texts("e"), texts("", "é", "h" * 300)):
        (answer,) = backend.run({"x": given}, ["y"])
        assert answer.tolist() == [[value] for value in given]


@pytest.mark.parametrize("rows", [2, 3])
def test_strings_of_any_number_of_rows_follow_each_other(tmp_path: Path, rows: int) -> None:
    model = save_reshape(tmp_path / "m.tflite", TensorType.STRING, [-1, 2], [-1])
    backend = TfliteBackend(model, threads=1)
    for given in (texts("a", "b").reshape(1, 2), texts(*"abcdef"[: 2 * rows]).reshape(rows, 2)):
        assert backend.run({"x": given}, ["y"])[0].tolist() == given.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("kind", "shape"), [(TensorType.STRING, [-1]), (TensorType.FLOAT32, [-1, 2])]
)
def test_model_that_needs_more_than_one_row_is_verified(
    tmp_path: Path, kind: int, shape: list[int]
) -> None:
    model = save_reshape(tmp_path / "m.tflite", kind, shape, [2, *shape[1:]])
    backend = TfliteBackend(model, threads=1)
    checked = SelfCheck(backend).run(EngineDefinition(name=EngineName("m"), file=model))
    assert (checked.unverified, len(checked.samples.inputs[0]["x"])) == ("", 2)


@pytest.mark.parametrize("text", [b"ab", b"", b"a\0", b"\xff" * 100])
def test_scalar_string_is_passed_as_it_is(tmp_path: Path, text: bytes) -> None:
    for sizes in ([1], []):
        model = save_reshape(tmp_path / "m.tflite", TensorType.STRING, [], sizes)
        backend = TfliteBackend(model, threads=1)
        (answer,) = backend.run({"x": np.array(text, object)}, ["y"])
        assert (answer.dtype, answer.reshape(-1).tolist()) == (np.dtype(object), [text])


def test_signature_is_served_by_the_names_of_its_tensors(tmp_path: Path) -> None:
    model = save_sum(tmp_path / "m.tflite", signature="train", int8=True)
    backend = TfliteBackend(model, threads=1, signature="train")
    assert (backend.inputs[0].name, backend.outputs[0].name) == ("a", "b")
    assert backend.quantisations["a"].zero_point == 3
    for rows in (1, 3, 2):
        (answer,) = backend.run({"a": np.full((rows, 2), 5, np.int8)}, ["b"])
        assert answer.tolist() == [[7, 7]] * rows
    for sizes in ((1, 3), (3,)):
        with pytest.raises(SynergaiError, match="TensorFlow Lite failed: ") as raised:
            backend.run({"a": np.ones(sizes, np.float32)}, ["b"])
        assert str(raised.value).count("Cannot set tensor") == 1


def failure(backend: TfliteBackend, rows: int) -> str:
    with pytest.raises(SynergaiError) as raised:
        backend.run({"x": texts(*"x" * rows)}, ["y"])
    return str(raised.value)


def test_error_has_no_word_of_earlier_queries(tmp_path: Path) -> None:
    backend = TfliteBackend(save_texts(tmp_path / "m.tflite", 2), threads=1)
    first, second = failure(backend, 7), failure(backend, 5)
    assert ("7 != 2" in first, "5 != 2" in second) == (True, True)
    assert "7 != 2" not in second
    assert failure(backend, 5) == second


def test_errors_cost_no_memory_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_agent.backends.tflite._MAX_REPORTED_CHARS", 500)
    backend = TfliteBackend(save_texts(tmp_path / "m.tflite", 2), threads=1)
    assert len({failure(backend, 5) for _ in range(20)}) == 1
    assert len(backend._reported) <= 500
    assert backend.run({"x": texts("a", "b")}, ["y"])[0].tolist() == [b"a", b"b"]


def import_with(monkeypatch: pytest.MonkeyPatch, runtime: ModuleType | None) -> ModuleType:
    """Import the backend without LiteRT, and with tflite-runtime if given."""
    for name in ("ai_edge_litert.interpreter", "tflite_runtime.interpreter"):
        monkeypatch.setitem(sys.modules, name, None)
    if runtime is not None:
        monkeypatch.setitem(sys.modules, "tflite_runtime", runtime)
        monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", runtime)
    monkeypatch.setattr(backends, "tflite", tflite)
    monkeypatch.delitem(sys.modules, tflite.__name__)
    return import_module(tflite.__name__)


def test_tflite_runtime_is_used_without_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ModuleType("tflite_runtime")
    runtime.Interpreter, runtime.OpResolverType = object(), SimpleNamespace(AUTO=0)  # type: ignore[attr-defined]
    assert import_with(monkeypatch, runtime).Interpreter is runtime.Interpreter


def test_litert_is_reported_as_missing_without_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="ai_edge_litert"):
        import_with(monkeypatch, None)
