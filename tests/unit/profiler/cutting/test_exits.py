"""Heads of early exits, and the stages that they become part of."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from profiler.cutting.heads import SURE, calibrate, train_head
from profiler.cutting.stages import cut_engine, make_exits
from profiler.zoo import recipes as zoo
from synergai.domain import Exit
from synergai.errors import InvalidInput
from synergai.models.definition import read_definition
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import DEFINITION_FILE

pytestmark = pytest.mark.usefixtures("cuts_here")
ENGINE = "onnx_digits"
CUTS = ["conv1/pool", "conv2/pool"]
Columns = tuple[dict[str, NDArray[np.float32]], NDArray[np.int64] | None]

draws = st.lists(
    st.tuples(st.sampled_from([0.3, 0.5, 0.7, 0.9, 1.0]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=40,
)


@given(draws, st.sampled_from([0.0, 0.05, 0.3]))
def test_the_threshold_is_the_least_one_that_surely_keeps_the_loss(
    samples: list[tuple[float, bool, bool]], loss: float
) -> None:
    likeliest, right, whole = (np.array(each) for each in zip(*samples, strict=True))

    def keeps(threshold: float) -> bool:
        leaves = likeliest >= threshold
        differences = whole[leaves].astype(int) - right[leaves]
        lost = differences.sum() + SURE * np.sqrt((differences != 0).sum())
        return bool(lost <= loss * leaves.sum())

    found = calibrate(likeliest, right, whole, loss)
    thresholds = sorted(set(likeliest.tolist()))
    kept = [threshold for threshold in thresholds if keeps(threshold)]
    if found is None:
        assert not kept
        return
    assert keeps(found.threshold)
    assert (found.leaves == (likeliest >= kept[0])).all()


def test_a_head_is_right_as_often_as_it_is_sure() -> None:
    generator = np.random.default_rng(3)
    centres = generator.standard_normal((4, 6))
    labels = generator.integers(0, 4, 2000)
    features = centres[labels] + 1.2 * generator.standard_normal((2000, 6))
    features[:, 5] = 7.0  # a constant feature says nothing
    head = train_head(features[:1000], labels[:1000], 4)
    probabilities = head.probabilities(features[1000:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    right = probabilities.argmax(axis=1) == labels[1000:]
    assert right.mean() > 0.6
    assert probabilities.max(axis=1).mean() == pytest.approx(right.mean(), abs=0.05)


# --- stages ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    zoo.build(ENGINE, models)
    return models


@pytest.fixture
def models(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "models")
    return tmp_path / "models"


def run_samples(models: Path, name: str) -> Columns:
    """Run an engine over its samples as an engine host does, but in this process."""
    definition = ModelDirectory(models).get(name)
    assert definition.samples is not None
    samples = np.load(definition.samples)
    session = onnxruntime.InferenceSession(definition.file)
    outputs = [each.name for each in session.get_outputs()]
    arrays = session.run(None, {"image": samples["image"]})
    return dict(zip(outputs, arrays, strict=True)), samples["labels"]


def make(
    models: Path, run: Callable[[Path, str], Columns] = run_samples, loss: float = 0.05
) -> list[Exit]:
    engine = cut_engine(models, ENGINE)
    stages, made = make_exits(engine, models, CUTS, run, lambda *_: None, loss=loss)
    assert [each.exit for each in made] == [stage.exit for stage in stages[:-1]]
    assert stages[-1].exit is None
    return [each.exit for each in made]


def test_a_stage_computes_the_answer_of_its_exit_before_its_tensor(models: Path) -> None:
    first, second = make(models)
    assert 0 < first.rate < 1
    assert 0 < first.accuracy <= first.whole_accuracy + 0.1
    assert first.whole_accuracy == second.whole_accuracy > 0.98
    stage = ModelDirectory(models).get(f"{ENGINE}.s0-3")
    session = onnxruntime.InferenceSession(stage.file)
    assert [each.name for each in session.get_outputs()] == ["probabilities", "conv1/pool"]
    samples = np.load(models / ENGINE / "samples.npz")
    calibrating = samples["image"][1::2]
    [probabilities, tensor] = session.run(None, {"image": calibrating})
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (probabilities.max(axis=1) >= first.threshold).mean() == pytest.approx(first.rate)
    assert tensor.shape == (len(calibrating), 16, 4, 4)


def test_accuracy_counts_all_samples_whose_queries_left_here_or_before(models: Path) -> None:
    exits = make(models)
    columns, labels = run_samples(models, ENGINE)
    assert labels is not None
    right = columns["probabilities"][1::2].argmax(axis=1) == labels[1::2]
    left = np.zeros(len(right), bool)
    tensor = np.load(models / ENGINE / "samples.npz")["image"][1::2]
    for name, each in zip((f"{ENGINE}.s0-3", f"{ENGINE}.s3-6"), exits, strict=True):
        session = onnxruntime.InferenceSession(ModelDirectory(models).get(name).file)
        [probabilities, tensor] = session.run(None, {session.get_inputs()[0].name: tensor})
        leaves = ~left & (probabilities.max(axis=1) >= each.threshold)
        right[leaves] = probabilities[leaves].argmax(axis=1) == labels[1::2][leaves]
        left |= leaves
        assert right.mean() == pytest.approx(each.accuracy)


def test_no_exit_is_made_where_the_tensor_says_nothing(models: Path) -> None:
    def noise(directory: Path, name: str) -> Columns:
        columns, labels = run_samples(directory, name)
        generator = np.random.default_rng(1)
        shuffled = {
            name: array if name == "probabilities" else generator.permutation(array)
            for name, array in columns.items()
        }
        return shuffled, labels

    with pytest.raises(InvalidInput, match=r"surely loses less than 5\.00%.*larger --loss"):
        make(models, noise)


def test_heads_need_labels_that_are_classes(models: Path) -> None:
    with pytest.raises(InvalidInput, match="need labels, and at least 100"):
        make(models, lambda *of: (run_samples(*of)[0], None))
    with pytest.raises(InvalidInput, match="labels are from 7 to 16, but the output has 10"):
        make(models, lambda *of: (run_samples(*of)[0], np.arange(450) % 10 + 7))
    (models / ENGINE / "samples.npz").unlink()
    with pytest.raises(InvalidInput, match=r"has no samples\.npz to train heads on"):
        make(models)


def test_the_exit_of_a_stage_is_checked(models: Path) -> None:
    make(models)
    path = models / f"{ENGINE}.s0-3" / DEFINITION_FILE
    text = path.read_text()
    for former, new, reason in (
        ('"output"', '"of"', "exit: there is no setting of, but output"),
        ('"threshold" = ', '"threshold" = 2', "the threshold of an early exit must be from 0 to 1"),
    ):
        path.write_text(text.replace(former, new))
        assert former in text
        with pytest.raises(InvalidInput, match=reason):
            read_definition(path)
    whole = models / ENGINE / DEFINITION_FILE
    exit_ = next(line for line in text.splitlines() if line.startswith("exit"))
    whole.write_text(f"{whole.read_text()}{exit_}\n")
    assert "exit is for stages" in ModelDirectory(models).get(ENGINE).fault
