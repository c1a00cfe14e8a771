"""8-bit variants of engines, and the quantisation that makes them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from examples.training.strided_cnn import INPUT, Images, Shape, StridedCnn
from profiler.installation import write_definition
from profiler.zoo import variants
from profiler.zoo.onnx_graph import OnnxGraph, ValueInfo, write_model
from profiler.zoo.variants import CheckedVariant, make_variants, quantise
from synergai.domain import Origin, TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.samples import write_samples

SHAPE = Shape(size=4, channels=(4, 4), strides=(1, 2), classes=2)
RIGHT = CheckedVariant(
    inputs=(TensorSpec(INPUT, "UINT8", (-1, 1, 4, 4)),),
    outputs=(TensorSpec("logits", "FP32", (-1, 2)),),
    labelled=8,
    correct=6,
)


def images(count: int = 32) -> Images:
    pixels = np.random.default_rng(1).integers(0, 255, (count, 4, 4)).astype(np.uint8)
    return Images(pixels, (pixels[:, 0, 0] > 127).astype(np.int64))


class Checks:
    """Stands for engine hosts; records what is checked, and which files the engine has then."""

    def __init__(self, models: Path) -> None:
        self.asked: list[str] = []
        self.results: dict[str, CheckedVariant | Exception] = {}
        self.loadable: list[bool] = []
        self._models = models

    def __call__(self, models: Path, name: str, variant: str) -> CheckedVariant:
        self.asked.append(variant)
        ModelDirectory(models).get(name).of_variant(variant).verified_digest()
        for engine in ModelDirectory(self._models).engines():
            self.loadable.append(bool(engine.of_variant("").verified_digest()))
        result = self.results.get(variant, RIGHT)
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "net"
    folder.mkdir()
    put(folder)
    write_definition(folder, {"title": "a net", "max_batch": 4, "accuracy": 0.5})
    return tmp_path


@pytest.fixture
def checks(models: Path) -> Checks:
    return Checks(models)


def put(folder: Path, file: str = "model.onnx") -> None:
    write_model(folder / file, StridedCnn.initial(SHAPE, seed=1).to_onnx())
    data = images(8)
    write_samples(folder, {INPUT: data.pixels[:, None], "labels": data.labels})


def test_engine_gets_an_int8_variant_and_keeps_its_model_and_keys(
    models: Path, checks: Checks
) -> None:
    before = (models / "net/model.onnx").read_bytes()
    checks.results["int8"] = replace(RIGHT, correct=5)

    engine = make_variants(models, "net", checks)

    full, int8 = engine.variants
    assert (full.name, full.file, full.accuracy) == ("full", models / "net/model.onnx", 0.75)
    assert (int8.name, int8.accuracy, int8.origin) == ("int8", 0.625, Origin.MEASURED)
    assert int8.file.parent == models / "net/variants"
    assert engine.of_variant("int8").verified_digest() == int8.sha256
    assert (engine.title, engine.max_batch) == ("a net", 4)
    assert before == full.file.read_bytes()
    assert checks.asked == ["full", "int8"]
    assert all(checks.loadable)
    assert [path.name for path in models.iterdir()] == ["net"], "nothing is left behind"


def test_variants_are_made_once(models: Path, checks: Checks) -> None:
    make_variants(models, "net", checks)
    checks.asked.clear()
    with pytest.raises(InvalidInput, match="has these variants already: full, int8; to make"):
        make_variants(models, "net", checks)
    assert checks.asked == [], "nothing is loaded for an error that is known before"


def test_variant_with_other_tensors_or_that_fails_changes_nothing(
    models: Path, checks: Checks
) -> None:
    before = {path: path.read_bytes() for path in (models / "net").iterdir()}
    faults: tuple[CheckedVariant | Exception, ...] = (
        replace(RIGHT, outputs=(TensorSpec("logits", "FP32", (-1, 3)),)),
        replace(RIGHT, unverified="the model fails on its samples.npz"),
        EngineUnusable("it crashed"),
    )
    said = ("other outputs than its engine's", "does not work: the model fails", "it crashed")
    for fault, text in zip(faults, said, strict=True):
        checks.results["int8"] = fault
        with pytest.raises((InvalidInput, EngineUnusable), match=text):
            make_variants(models, "net", checks)
        assert {path: path.read_bytes() for path in (models / "net").iterdir()} == before
        assert [path.name for path in models.iterdir()] == ["net"]


def test_interruption_before_the_definition_changes_nothing_that_is_read(
    models: Path, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(variants, "_install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_variants(models, "net", checks)
    assert ModelDirectory(models).get("net").variants == ()
    assert len(make_variants(models, "net", checks).variants) == 2


def test_engine_without_labels_has_variants_without_accuracy(models: Path, checks: Checks) -> None:
    for name in ("full", "int8"):
        checks.results[name] = replace(RIGHT, labelled=0, correct=0)
    engine = make_variants(models, "net", checks)
    assert [each.accuracy for each in engine.variants] == [0.5, None]


def test_version_gets_variants_of_its_own(models: Path, checks: Checks) -> None:
    (models / "net/2").mkdir()
    put(models / "net/2", "other.onnx")

    engine = make_variants(models, "net/2", checks)

    assert [each.name for each in engine.variants] == ["full", "int8"]
    assert engine.max_batch == 4, "from the engine's folder"
    assert ModelDirectory(models).get("net").variants == ()


def test_engine_without_samples_or_onnx_model_has_no_variants(models: Path, checks: Checks) -> None:
    (models / "net/samples.npz").unlink()
    with pytest.raises(InvalidInput, match=r"no samples\.npz .* put one into its folder"):
        make_variants(models, "net", checks)
    (models / "net/model.onnx").rename(models / "net/model.tflite")
    with pytest.raises(InvalidInput, match="is not an ONNX model"):
        make_variants(models, "net", checks)
    (models / "net/model.tflite").unlink()
    with pytest.raises(EngineUnusable, match="has no model file"):
        make_variants(models, "net", checks)


def a_model(operator: str) -> onnx.ModelProto:
    graph = OnnxGraph("other", 11)
    graph.node(operator, ["x"], "y")
    return graph.model({"x": ValueInfo(shape=["n", 2])}, {"y": ValueInfo(shape=["n", 2])})


def test_model_of_an_earlier_operator_set_is_quantised(tmp_path: Path) -> None:
    graph = OnnxGraph("early", 11)
    graph.weight("w", np.eye(2, dtype=np.float32))
    graph.node("MatMul", ["x", "w"], "y")
    model = graph.model({"x": ValueInfo(shape=["n", 2])}, {"y": ValueInfo(shape=["n", 2])})
    write_model(tmp_path / "early.onnx", model)
    samples = [{"x": np.array([[i, -i]], np.float32)} for i in range(3)]
    quantise(tmp_path / "early.onnx", tmp_path / "int8.onnx", samples)
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    [answer] = session.run(None, {"x": np.array([[1, 2]], np.float32)})
    assert answer == pytest.approx(np.array([[1, 2]], np.float32), abs=0.05)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (1,), (1, 1)])
def test_bias_of_any_shape_is_quantised(tmp_path: Path, shape: tuple[int, ...]) -> None:
    graph = OnnxGraph("biased", 11)
    graph.node("Cast", ["x"], "f", to=onnx.TensorProto.FLOAT)
    graph.weight("w", np.eye(2, dtype=np.float32))
    graph.weight("b", np.full(shape, 3, np.float32))
    graph.node("Gemm", ["f", "w", "b"], "y")
    whole = ValueInfo(element=onnx.TensorProto.INT32, shape=["n", 2])
    model = graph.model({"x": whole}, {"y": ValueInfo(shape=["n", 2])})
    write_model(tmp_path / "biased.onnx", model)
    samples = [{"x": np.array([[i, -i]], np.int32)} for i in range(8)]
    quantise(tmp_path / "biased.onnx", tmp_path / "int8.onnx", samples)
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    [answer] = session.run(None, {"x": np.array([[1, -2]], np.int32)})
    assert answer == pytest.approx(np.array([[4, 1]], np.float32), abs=0.1)


def test_model_that_cannot_gain_is_not_quantised(tmp_path: Path) -> None:
    write_model(tmp_path / "relu.onnx", a_model("Relu"))
    samples = [{"x": np.array([[1, 2]], np.float32)}]
    with pytest.raises(InvalidInput, match="has no convolution or matrix product"):
        quantise(tmp_path / "relu.onnx", tmp_path / "int8.onnx", samples)
    with pytest.raises(InvalidInput, match="no samples to calibrate on"):
        quantise(tmp_path / "relu.onnx", tmp_path / "int8.onnx", [])
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(InvalidInput, match=r"junk\.onnx cannot be quantised"):
        quantise(tmp_path / "junk.onnx", tmp_path / "int8.onnx", samples)
