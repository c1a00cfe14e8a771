"""8-bit variants of engines, and the quantisation that makes them."""

import errno
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
from profiler.zoo.variants import make_variants, quantise
from synergai.domain import Origin
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.samples import write_samples

SHAPE = Shape(size=4, channels=(4, 4), strides=(1, 2), classes=2)


def images(count: int = 32) -> Images:
    pixels = np.random.default_rng(1).integers(0, 255, (count, 4, 4)).astype(np.uint8)
    return Images(pixels, (pixels[:, 0, 0] > 127).astype(np.int64))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "net"
    folder.mkdir()
    put(folder)
    write_definition(folder, {"title": "a net", "max_batch": 4, "accuracy": 0.5})
    return tmp_path


def put(folder: Path, file: str = "model.onnx") -> None:
    write_model(folder / file, StridedCnn.initial(SHAPE, seed=1).to_onnx())
    data = images(8)
    write_samples(folder, {INPUT: data.pixels[:, None], "labels": data.labels})


def test_engine_gets_an_int8_variant_and_keeps_its_model_and_keys(models: Path) -> None:
    before = (models / "net/model.onnx").read_bytes()
    said: list[str] = []

    engine = make_variants(models, "net", said.append)

    full, int8 = engine.variants
    assert (full.name, full.file) == ("full", models / "net/model.onnx")
    assert (full.accuracy, full.origin) == (share_of_right_answers(full.file), Origin.MEASURED)
    assert (int8.name, int8.file.parent) == ("int8", models / "net/variants")
    assert (int8.accuracy, int8.origin) == (share_of_right_answers(int8.file), Origin.MEASURED)
    assert engine.of_variant("int8").verified_digest() == int8.sha256
    assert (engine.title, engine.max_batch) == ("a net", 4)
    assert before == full.file.read_bytes()
    assert said == ["quantising full", "checking int8"]
    assert [path.name for path in models.iterdir()] == ["net"], "nothing is left behind"


def share_of_right_answers(file: Path) -> float:
    data = images(8)
    session = onnxruntime.InferenceSession(file)
    answers = session.run(None, {INPUT: data.pixels[:, None]})[0].argmax(axis=1)
    return float((answers == data.labels).mean())


def test_variants_are_made_once(models: Path) -> None:
    make_variants(models, "net")
    said: list[str] = []
    with pytest.raises(InvalidInput, match="has these variants already: full, int8; to make"):
        make_variants(models, "net", said.append)
    assert said == [], "nothing is made for an error that is known before"


def a_failing_model() -> onnx.ModelProto:
    graph = OnnxGraph("failing", 13)
    graph.node("Cast", [INPUT], "f", to=onnx.TensorProto.FLOAT)
    graph.weight("rows", np.array([5, 2], np.int64))  # a sample has 16 elements
    graph.node("Reshape", ["f", "rows"], "logits")
    pixels = ValueInfo(element=onnx.TensorProto.UINT8, shape=["n", 1, 4, 4])
    return graph.model({INPUT: pixels}, {"logits": ValueInfo(shape=["n", 2])})


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (
            StridedCnn.initial(replace(SHAPE, classes=3), seed=1).to_onnx(),
            "made with other outputs",
        ),
        (a_failing_model(), "variant 'int8' does not work"),
    ],
)
def test_variant_with_other_tensors_or_that_fails_changes_nothing(
    models: Path, monkeypatch: pytest.MonkeyPatch, model: onnx.ModelProto, fault: str
) -> None:
    before = {path: path.read_bytes() for path in (models / "net").iterdir()}
    monkeypatch.setattr(
        variants, "quantise", lambda _source, target, _samples: write_model(target, model)
    )
    with pytest.raises(InvalidInput, match=fault):
        make_variants(models, "net")
    assert {path: path.read_bytes() for path in (models / "net").iterdir()} == before
    assert [path.name for path in models.iterdir()] == ["net"]


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InvalidInput),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_interruption_before_the_definition_changes_nothing(
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: BaseException,
    raised: type[BaseException],
) -> None:
    def interrupted(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(variants, "write_definition", interrupted)
        with pytest.raises(raised):
            make_variants(models, "net")
    assert ModelDirectory(models).get("net").variants == ()
    assert not (models / "net/variants").exists()
    assert len(make_variants(models, "net").variants) == 2


def test_engine_without_labels_has_variants_without_accuracy(models: Path) -> None:
    write_samples(models / "net", {INPUT: images(8).pixels[:, None]})
    engine = make_variants(models, "net")
    assert [each.accuracy for each in engine.variants] == [0.5, None]


def test_classes_with_a_background_are_compared_with_labels_without_it(models: Path) -> None:
    with_background = StridedCnn.initial(replace(SHAPE, classes=1001), seed=1).to_onnx()
    write_model(models / "net/model.onnx", with_background)
    (models / "net/engine.toml").write_text('postprocess = "classes"\n')
    pixels = images(8).pixels[:, None]
    session = onnxruntime.InferenceSession(models / "net/model.onnx")
    labels = session.run(None, {INPUT: pixels})[0].argmax(axis=1) - 1
    write_samples(models / "net", {INPUT: pixels, "labels": labels})
    full, _ = make_variants(models, "net").variants
    assert full.accuracy == 1.0


def test_version_gets_variants_of_its_own(models: Path) -> None:
    (models / "net/2").mkdir()
    put(models / "net/2", "other.onnx")

    engine = make_variants(models, "net/2")

    assert [each.name for each in engine.variants] == ["full", "int8"]
    assert engine.max_batch == 4, "from the engine's folder"
    assert ModelDirectory(models).get("net").variants == ()


def test_engine_without_samples_or_onnx_model_has_no_variants(models: Path) -> None:
    (models / "net/samples.npz").unlink()
    with pytest.raises(InvalidInput, match=r"no samples\.npz .* put one into its folder"):
        make_variants(models, "net")
    (models / "net/model.onnx").rename(models / "net/model.tflite")
    with pytest.raises(InvalidInput, match="is not an ONNX model"):
        make_variants(models, "net")
    (models / "net/model.tflite").unlink()
    with pytest.raises(EngineUnusable, match="has no model file"):
        make_variants(models, "net")


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
