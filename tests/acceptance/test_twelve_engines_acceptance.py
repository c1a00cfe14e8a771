"""The twelve full-size engines: built, cut, loaded by an engine host, and run on photographs.

They are built into the model directory ``SYNERGAI_TWELVE``, unless they exist there, or into a
temporary one. Every engine gets the same encoded images: 20 views of the photographs used for its
calibration, and 40 random crops that were not. ``pytest -s`` shows the figures.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from demo.local_fleet import LocalFleet
from profiler.cutting.extraction import extract_stage
from profiler.cutting.graph import find_cuts
from profiler.measuring.host_client import HostClient
from profiler.zoo import recipes as zoo
from profiler.zoo.listing import PUBLISHED
from profiler.zoo.photographs import all_views, load_photographs, random_crops
from synergai.client.client import Client
from synergai.domain import Configuration, EngineName, Outcome, Session, TensorSpec
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import digest
from synergai.models.samples import load_samples
from synergai.oip import inference_pb2 as oip
from synergai.wire.arrays import build_request, read_outputs
from tests.drawn_graphs import Arrays

Answers: TypeAlias = Mapping[str, NDArray[np.float32 | np.int64]]

TWELVE = [each.name for each in PUBLISHED]
PARTS = 20
UNSEEN_SEED = 1  # calibration uses seed 0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SYNERGAI_TWELVE")
    models = Path(given) if given else tmp_path_factory.mktemp("models")
    for name in TWELVE:
        if not zoo.is_built(name, models):
            zoo.build(name, models)
    return models


@pytest.fixture(scope="module")
def answers(models: Path) -> dict[EngineName, Answers]:
    images = all_views()
    for photograph in load_photographs():
        images += random_crops(photograph, PARTS, UNSEEN_SEED)
    encoded = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in images]
    return {name: ask(models, name, encoded) for name in TWELVE}


def ask(models: Path, name: EngineName, images: list[bytes]) -> Answers:
    """Return the outputs for all images, by names without TensorFlow's index."""
    found: list[Answers] = []
    with HostClient(models, Session(name, Configuration(1))) as host:
        (taken,) = host.ready.inputs
        for image in images:
            request = build_request(name, {taken.name: np.array([image], object)})
            ended, data = host.query(request.SerializeToString())
            assert ended.outcome is Outcome.COMPLETED, ended.detail
            found.append(read_outputs(oip.ModelInferResponse.FromString(data)))
    return {
        key.removesuffix(":0"): np.concatenate([each[key] for each in found]) for key in found[0]
    }


def probabilities(answers: Answers) -> NDArray[np.float32 | np.int64]:
    """Return the output with a value per class; int8 outputs are unscaled, but keep the order."""
    (found,) = (array for array in answers.values() if array.shape[1:] == (1001,))
    return found


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ("onnx_resnet50_op11", ("onnx_resnet50_op8", "tf_resnet50")),
        ("onnx_mobilenet_op11", ("onnx_mobilenet_op8", "tf_mobilenet", "tfl_mobilenet")),
    ],
)
def test_float_classifiers_agree_in_probabilities(
    answers: dict[EngineName, Answers], first: str, others: tuple[str, ...]
) -> None:
    expected = probabilities(answers[EngineName(first)])
    for other in others:
        difference = float(np.abs(probabilities(answers[EngineName(other)]) - expected).max())
        print(f"{first} and {other}: probabilities differ by at most {difference:.1e}")
        assert difference <= 1e-4


@pytest.mark.parametrize("name", ["tfl_mobilenet_q", "tf_mobilenet_q"])
def test_quantised_classifiers_agree_with_the_float_network(
    answers: dict[EngineName, Answers], name: str
) -> None:
    expected = probabilities(answers[EngineName("tfl_mobilenet")]).argmax(axis=1)
    agrees = probabilities(answers[EngineName(name)]).argmax(axis=1) == expected
    seen = len(agrees) - 2 * PARTS
    print(
        f"{name}: top-1 as exact, {agrees[:seen].mean():.1%} of views, "
        f"{agrees[seen:].mean():.1%} of other parts, {len(set(expected))} classes"
    )
    assert agrees.mean() >= 0.9


@pytest.mark.parametrize("other", ["onnx_ssd_op8", "tf_ssd"])
def test_detectors_find_the_same_objects(
    answers: dict[EngineName, Answers],
    other: str,
    assert_same_detections: Callable[[Answers, Answers], None],
) -> None:
    found, expected = answers[EngineName(other)], answers[EngineName("onnx_ssd_op11")]
    difference = np.abs(found["detection_scores"] - expected["detection_scores"]).max()
    print(f"onnx_ssd_op11 and {other}: scores differ by at most {difference:.1e}")
    assert_same_detections(found, expected)


@pytest.mark.parametrize("name", ["tf_mobilenet", "tfl_mobilenet_q", "onnx_ssd_op8"])
def test_builds_are_reproducible(models: Path, tmp_path: Path, name: str) -> None:
    again = zoo.build(name, tmp_path)

    (first,) = (models / name).glob(again.file.name)
    assert digest(again.file) == digest(first)


async def test_all_twelve_serve_photographs_through_a_gateway(models: Path, tmp_path: Path) -> None:
    with LocalFleet(tmp_path) as fleet:
        fleet.start_gateway()
        fleet.start_agent("all", models=models)
        fleet.wait_for_workers(1)
        async with Client(fleet.address) as client:
            for name in TWELVE:
                derived = "boxes" if "ssd" in name else "classes"
                taken = (await client.engine(name)).inputs[0].name
                for photograph in load_photographs():
                    began = time.monotonic()
                    answer = await client.infer(
                        name,
                        {taken: np.array([photograph.jpeg], object)},
                        outputs=[derived],
                        deadline=120.0,
                    )
                    found = answer.outputs[derived]
                    print(
                        f"{name}, {photograph.name}: {derived} {found[:1].tolist()}, "
                        f"{time.monotonic() - began:.2f} s"
                    )
                    assert found.shape[1:] == ((7,) if derived == "boxes" else ())


ENGINES = [
    f"onnx_{name}_op{opset}" for name in ("mobilenet", "resnet50", "ssd") for opset in (8, 11)
]
CUTS = {"mobilenet": 57, "resnet50": 38, "ssd": 50}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


@pytest.mark.parametrize("engine", ENGINES)
def test_all_cuts_give_the_answers_of_the_whole(engine: str, models: Path) -> None:
    definition = ModelDirectory(models).get(engine)
    model = onnx.load(definition.file)
    cuts = find_cuts(model).cuts
    assert len(cuts) == CUTS[engine.split("_")[1]]
    whole = session(model)
    (given,) = whole.get_inputs()
    shape = tuple(size if isinstance(size, int) else -1 for size in given.shape)
    datatype = {"tensor(float)": "FP32", "tensor(uint8)": "UINT8"}[given.type]
    sample: Arrays = load_samples(definition, [TensorSpec(given.name, datatype, shape)]).inputs[0]
    expected = whole.run(None, sample)
    worst = 0.0
    for cut in cuts:
        head = session(extract_stage(model, "0" * 64, None, cut)).run([cut.tensor], sample)
        tail = session(extract_stage(model, "0" * 64, cut, None)).run(None, {cut.tensor: head[0]})
        for mine, theirs in zip(tail, expected, strict=True):
            if cut.exact:
                np.testing.assert_array_equal(mine, theirs, err_msg=cut.tensor)
            else:
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6, err_msg=cut.tensor)
            worst = max(worst, float(np.abs(mine - theirs).max(initial=0.0)))
    print(
        f"{engine}: {sum(cut.exact for cut in cuts)} exact of {len(cuts)}, at most {worst:.1e} off"
    )
