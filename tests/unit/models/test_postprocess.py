"""Derivation of classes and boxes from model outputs."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.processing import (
    BoxPostprocessor,
    ClassPostprocessor,
    create_postprocessor,
    top_classes,
)


def specs(*names: str) -> list[TensorSpec]:
    return [TensorSpec(name, "FP32", (-1,)) for name in names]


def classes_of(output: ArrayLike) -> list[int]:
    found: list[int] = ClassPostprocessor(specs("p")).derive({"p": np.asarray(output)}).tolist()
    return found


def probabilities(*best: int, values: int = 1001) -> NDArray[np.float32]:
    return np.eye(values, dtype=np.float32)[list(best)]


# --- classes --------------------------------------------------------------------------------


def test_classes_are_counted_from_after_the_background() -> None:
    assert classes_of(probabilities(208, 1, 0)) == [207, 0, -1]


def test_classes_without_a_background_are_counted_from_the_first() -> None:
    assert classes_of(probabilities(208, 0, values=1000)) == [208, 0]


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1)])
def test_output_of_an_arg_max_is_the_class(shape: tuple[int, ...]) -> None:
    assert classes_of(np.array([208, 1, 0], np.int64).reshape(shape)) == [207, 0, -1]
    assert classes_of(np.int64(208)) == [207]


def test_spatial_axes_of_length_one_are_ignored() -> None:
    assert classes_of(probabilities(5).reshape(1, 1, 1, 1001)) == [4]


def test_quantised_probabilities_are_compared_as_numbers() -> None:
    output = np.zeros((1, 1001), np.uint8)
    output[0, 7] = 255

    assert classes_of(output) == [6]


def test_empty_output_fails_the_request_and_not_the_engine() -> None:
    with pytest.raises(InvalidInput, match="'p' is empty"):
        classes_of(np.zeros((0, 1001), np.float32))


# --- boxes ----------------------------------------------------------------------------------

DETECTIONS = ("num_detections:0", "detection_boxes:0", "detection_scores:0", "detection_classes:0")


def detections(counts: Sequence[float], places: int = 3) -> dict[str, NDArray[np.float32]]:
    images = len(counts)
    boxes = np.arange(images * places * 4, dtype=np.float32).reshape(
        images, places, 4
    ) / np.float32(100)
    return {
        "num_detections:0": np.asarray(counts, np.float32),
        "detection_boxes:0": boxes,
        "detection_scores:0": np.full((images, places), 0.5, np.float32),
        "detection_classes:0": np.full((images, places), 17, np.float32),
    }


def test_objects_of_all_images_are_in_one_table() -> None:
    found = BoxPostprocessor(specs(*DETECTIONS)).derive(detections([2, 0, 1]))

    assert found.dtype == np.float32
    assert np.round(found, 2).tolist() == [
        pytest.approx([0, 0.00, 0.01, 0.02, 0.03, 0.5, 17]),
        pytest.approx([0, 0.04, 0.05, 0.06, 0.07, 0.5, 17]),
        pytest.approx([2, 0.24, 0.25, 0.26, 0.27, 0.5, 17]),
    ]


@pytest.mark.parametrize("count", [0, -1, np.nan])
def test_image_without_objects_gives_an_empty_table(count: int) -> None:
    assert BoxPostprocessor(specs(*DETECTIONS)).derive(detections([count])).shape == (0, 7)


def test_count_is_limited_to_the_number_of_places() -> None:
    assert BoxPostprocessor(specs(*DETECTIONS)).derive(detections([100])).shape == (3, 7)


@pytest.mark.parametrize(
    "damage",
    [
        {"detection_boxes:0": np.zeros((1, 3), np.float32)},
        {"detection_scores:0": np.zeros((1, 2), np.float32)},
        {"num_detections:0": np.zeros(0, np.float32)},
    ],
)
def test_inconsistent_outputs_fail_the_request(
    damage: dict[str, NDArray[np.float32]],
) -> None:
    with pytest.raises(InvalidInput, match="detections"):
        BoxPostprocessor(specs(*DETECTIONS)).derive({**detections([1]), **damage})


def test_model_without_detection_outputs_is_unusable() -> None:
    with pytest.raises(EngineUnusable, match="the model lacks num_detections, detection_classes"):
        create_postprocessor("boxes", specs("detection_boxes", "detection_scores"))


def test_output_names_of_saved_models_have_no_index() -> None:
    names = tuple(name.removesuffix(":0") for name in DETECTIONS)

    assert create_postprocessor("boxes", specs(*names)).required_outputs == names


def test_name_collision_with_the_derived_output_is_unusable() -> None:
    with pytest.raises(EngineUnusable, match="but the model has one"):
        create_postprocessor("classes", specs("p", "classes"))


# --- the classification extension -----------------------------------------------------------


def test_top_classes_are_sorted_by_value() -> None:
    output = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.5]], np.float32)

    assert top_classes(output, 2).tolist() == [
        [b"0.700000:1", b"0.200000:2"],
        [b"0.500000:0", b"0.500000:2"],
    ]


def test_top_classes_are_limited_to_those_available() -> None:
    assert top_classes(np.array([[1, 2]]), 1000).tolist() == [[b"2.000000:1", b"1.000000:0"]]


def test_output_without_a_batch_gives_one_row() -> None:
    assert top_classes(np.array([3, 9, 4], np.uint8), 1).tolist() == [b"9.000000:1"]


def test_top_classes_can_be_numbered_as_imagenet() -> None:
    best = top_classes(probabilities(208), 1, as_imagenet=True)

    assert best.tolist() == [[b"1.000000:207"]]


def test_top_classes_of_strings_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="strings"):
        top_classes(np.array([b"text"], object), 1)
