import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import TensorType
from numpy.typing import NDArray

from synergai.errors import SynergaiError
from synergai.models.directory import EngineDefinition
from synergai.names import EngineName
from tests.tiny_tflite import save_reshape, save_sum, save_texts
from worker_agent import backends
from worker_agent.backends import tflite
from worker_agent.backends.tflite import TfliteBackend
from worker_agent.host.loading import SelfCheck


def texts(*values: str) -> NDArray[Any]:
    return np.array([value.encode() for value in values], object)


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
