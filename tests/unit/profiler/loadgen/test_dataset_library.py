"""Data set images as LoadGen samples."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from profiler.loadgen.library import Coco, DatasetLibrary, ImageNet, SampleSet, dataset_library
from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput, NotFound
from synergai.models.samples import Samples
from tests.engines import new_engine
from tests.tiny_datasets import save_coco, save_imagenet
from tests.tiny_images import BOX, picture

ENGINE = new_engine(
    "colours",
    (TensorSpec("image", "FP32", (-1, 3, 224, 224)),),
    (TensorSpec("p", "FP32", (-1, 1001)),),
    preprocess="mobilenet",
    postprocess="classes",
)


def logged(folder: Path, responses: dict[int, bytes]) -> Path:
    """Write an accuracy log in LoadGen's format."""
    path = folder / "mlperf_log_accuracy.json"
    entries = [
        {"seq_id": seq, "qsl_idx": index, "data": data.hex().upper()}
        for seq, (index, data) in enumerate(responses.items())
    ]
    path.write_text(json.dumps(entries))
    return path


def test_images_are_sent_as_files(tmp_path: Path) -> None:
    library = dataset_library("imagenet", save_imagenet(tmp_path, ["red", "blue"]), ENGINE)

    library.load([1])

    assert library.inputs(1)["image"].tolist() == [picture("blue")]
    assert library.outputs == ("classes",)
    assert (library.count, library.performance_count) == (2, 2)
    library.unload([1])
    with pytest.raises(KeyError):
        library.inputs(1)


def test_classes_are_logged_in_the_format_of_mlperfs_script(tmp_path: Path) -> None:
    library = DatasetLibrary(ImageNet(save_imagenet(tmp_path, ["red", "blue"])), "image")
    responses = {
        i: library.encode_response(i, {"classes": np.array([c])}) for i, c in enumerate((0, 1))
    }

    assert responses[1] == np.float32(1).tobytes()
    accuracy = library.evaluate(logged(tmp_path, responses))
    assert (accuracy.measure, accuracy.value, accuracy.samples) == ("top-1", 0.5, 2)


def test_boxes_are_logged_with_their_image_index(tmp_path: Path) -> None:
    library = DatasetLibrary(Coco(save_coco(tmp_path, ["red", "blue"])), "image")
    boxes = {"boxes": np.array([[0, *BOX, 0.5, 3]], np.float32)}

    responses = {0: b"", 1: library.encode_response(1, boxes)}

    assert np.frombuffer(responses[1], np.float32)[0] == 1
    accuracy = library.evaluate(logged(tmp_path, responses))
    assert (accuracy.measure, accuracy.samples) == ("mAP", 2)
    assert accuracy.value == pytest.approx(0.5)


def test_labels_are_compared_with_the_engines_classes_output(
    tmp_path: Path,
) -> None:
    samples = Samples([{"image": np.zeros(1)}] * 2, np.array([0, 1]))
    library = SampleSet(samples, "here", "p", has_classes=True)

    responses = {
        i: library.encode_response(i, {"classes": np.array([c])}) for i, c in enumerate((0, 0))
    }

    assert library.outputs == ("classes",)
    accuracy = library.evaluate(logged(tmp_path, responses))
    assert accuracy is not None
    assert accuracy.value == 0.5


@pytest.mark.parametrize(
    "engine", [replace(ENGINE, preprocess=""), replace(ENGINE, postprocess="")]
)
def test_engine_without_image_pipeline_is_rejected(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="does not map images to classes"):
        dataset_library("imagenet", save_imagenet(tmp_path, ["red"]), engine)


def test_classifier_is_rejected_for_a_detection_data_set(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not map images to boxes"):
        dataset_library("coco", save_coco(tmp_path, ["red"]), ENGINE)


def test_missing_data_set_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot be read"):
        dataset_library("coco", tmp_path / "nowhere", ENGINE)
