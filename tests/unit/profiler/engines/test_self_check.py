"""Self-check of a model that is being added, without loading it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.engines.check import StagedChecks
from profiler.model_description import ModelDescription
from synergai.domain import EngineName, TensorSpec
from synergai.errors import BackendMissing, EngineUnusable
from synergai.models.descriptions import EngineDescription
from synergai.models.directory import EngineDefinition
from synergai.models.formats.model_files import ModelContents

Outcome = EngineDescription | Exception

ENGINE = EngineDefinition(name=EngineName("e"), backend="onnxruntime", file=Path("model.onnx"))

X = (TensorSpec("x", "FP32", (1,)),)
MODEL = ModelDescription(
    backend="onnxruntime",
    contents=ModelContents(format="ONNX", inputs=X, outputs=X),
    size_bytes=1,
    digest="",
)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Outcome], None]:
    """Replace the loading of a model by an outcome."""

    def replace(outcome: Outcome) -> None:
        def check_engine(_models: Path, _name: str) -> EngineDescription:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr("profiler.engines.check.check_engine", check_engine)

    return replace


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (EngineDescription(X, X, samples=8), "checked"),
        (
            EngineDescription(X, X, samples=0, unverified="it fails"),
            "unverified: it fails\nTo verify it, add a samples.npz",
        ),
        (BackendMissing("install synergai[tflite]"), "not checked: install synergai[tflite]"),
    ],
)
def test_result_says_whether_the_model_computes(
    loads: Callable[[Outcome], None], outcome: Outcome, result: str
) -> None:
    loads(outcome)
    checks = StagedChecks()
    checks(Path("models"), "e", MODEL)
    assert checks.result("e").startswith(result)


def test_model_that_cannot_be_loaded_is_an_error(loads: Callable[[Outcome], None]) -> None:
    loads(EngineUnusable("damaged"))
    with pytest.raises(EngineUnusable, match="damaged"):
        StagedChecks()(Path("models"), "e", MODEL)
    checks = StagedChecks(enabled=False)
    checks(Path("models"), "e", MODEL)
    assert checks.result("e") == "not checked"
