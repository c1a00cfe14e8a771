"""Data sets of images as sample libraries."""

import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from profiler.loadgen.library import Coco, ImageNet, SampleSet, dataset_library
from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput, NotFound
from synergai.models.samples import Samples
from tests.engines import new_engine
from tests.tiny_datasets import logged, save_coco, save_imagenet
from tests.tiny_images import BOX, picture

ENGINE = new_engine(
    "colours",
    (TensorSpec("image", "FP32", (-1, 3, 224, 224)),),
    (TensorSpec("p", "FP32", (-1, 1001)),),
    preprocess="mobilenet",
    postprocess="classes",
)


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
    library = ImageNet(save_imagenet(tmp_path, ["red", "blue"]), "image")
    responses = {
        i: library.encode_response(i, {"classes": np.array([c])}) for i, c in enumerate((0, 1))
    }

    assert responses[1] == np.float32(1).tobytes()
    accuracy = library.evaluate(logged(tmp_path, responses))
    assert (accuracy.measure, accuracy.value, accuracy.samples) == ("top-1", 0.5, 2)


def test_boxes_are_logged_with_their_image_index(tmp_path: Path) -> None:
    library = Coco(save_coco(tmp_path, ["red", "blue"]), "image")
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


@pytest.mark.parametrize("library", [Coco, ImageNet])
def test_missing_data_set_is_reported(library: type[Coco | ImageNet], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot be read"):
        library(tmp_path / "nowhere")


def classes(*found: float) -> dict[int, NDArray[np.float32]]:
    return {index: np.array([one], np.float32) for index, one in enumerate(found)}


def box(category: int, score: float = 0.9, shift: float = 0.0) -> NDArray[np.float32]:
    return np.array([[0, *(side + shift for side in BOX), score, category]], np.float32)


# --- ImageNet -------------------------------------------------------------------------------


def test_images_are_in_the_order_of_the_list(tmp_path: Path) -> None:
    data = ImageNet(save_imagenet(tmp_path, ["red", "blue", "green"]))

    assert data.count == 3
    assert data.image(1) == picture("blue")
    assert data.origin == f"3 of 3 images of {tmp_path}"


def test_missing_images_are_skipped(tmp_path: Path) -> None:
    save_imagenet(tmp_path, ["red", "blue", "green"])
    (tmp_path / "ILSVRC2012_val_00000001.JPEG").unlink()

    data = ImageNet(tmp_path)

    assert (data.count, data.image(0)) == (2, picture("blue"))
    assert data.score(classes(2, 1)) == 1


def test_top_1_is_the_share_of_correct_classes(tmp_path: Path) -> None:
    data = ImageNet(save_imagenet(tmp_path, ["red", "blue", "green", "red"]))

    assert data.score(classes(0, 2, 1, 0)) == 1
    assert data.score(classes(0, 2, -1, 2)) == 0.5
    assert data.score({0: np.zeros(0, np.float32), 1: np.array([2], np.float32)}) == 0.5


def test_name_of_an_image_need_not_be_text(tmp_path: Path) -> None:
    name = b"\xe9.JPEG"
    (tmp_path / os.fsdecode(name)).write_bytes(picture("red"))
    (tmp_path / "val_map.txt").write_bytes(name + b" 3\n")
    assert ImageNet(tmp_path).image(0) == picture("red")


@pytest.mark.parametrize("line", ["", "name", "name x", " 5", "name -1"])
def test_malformed_list_is_rejected(tmp_path: Path, line: str) -> None:
    (tmp_path / "val_map.txt").write_text(f"name 1\n{line}\n")

    with pytest.raises(
        InvalidInput, match=r"val_map\.txt, line 2: expected a file name and a class"
    ):
        ImageNet(tmp_path)


def test_missing_list_images_and_folders_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"val_map\.txt cannot be read"):
        ImageNet(tmp_path)
    (tmp_path / "val_map.txt").write_text("absent.JPEG 3\n")
    with pytest.raises(NotFound, match="none of the 1 listed images"):
        ImageNet(tmp_path)
    with pytest.raises(NotFound, match="val2017 cannot be read"):
        Coco(tmp_path)


# --- COCO -----------------------------------------------------------------------------------


@pytest.fixture
def coco(tmp_path: Path) -> Coco:
    return Coco(save_coco(tmp_path, ["red", "blue", "green"]))


def test_annotated_images_are_found(coco: Coco) -> None:
    assert coco.count == 3
    assert coco.image(2) == picture("green")


def test_exact_detections_have_full_precision(coco: Coco) -> None:
    assert coco.score({0: box(1), 1: box(3), 2: box(2)}) == pytest.approx(1)


def test_missed_misclassified_or_misplaced_objects_reduce_precision(coco: Coco) -> None:
    nothing = np.zeros((0, 7), np.float32)

    assert coco.score({0: box(1), 1: box(3), 2: nothing}) == pytest.approx(2 / 3)
    assert coco.score({0: box(1), 1: box(3), 2: box(1, 0.1)}) == pytest.approx(2 / 3)
    assert 0 < coco.score({0: box(1, shift=0.05), 1: box(3), 2: box(2)}) < 1
    assert coco.score({0: nothing, 1: nothing}) == 0


def test_only_predicted_images_are_evaluated(coco: Coco) -> None:
    assert coco.score({1: box(3).ravel()}) == pytest.approx(1)


def test_prediction_of_another_shape_is_rejected(coco: Coco) -> None:
    with pytest.raises(InvalidInput, match="image 0 does not have rows of 7"):
        coco.score({0: np.zeros(8, np.float32)})


@pytest.mark.parametrize("text", ["", "[]", '{"images": 3}', '{"images": [{"id": 1}]}'])
def test_malformed_annotations_are_rejected(tmp_path: Path, text: str) -> None:
    folder = save_coco(tmp_path, ["red"])
    (folder / "annotations" / "instances_val2017.json").write_text(text)

    with pytest.raises(InvalidInput, match="is not a COCO annotations file"):
        Coco(folder)
