"""Images as inputs, in a real engine host and through a gateway."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.measuring.host_client import HostClient
from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.samples import write_samples
from synergai.oip import inference_pb2 as oip
from synergai.wire.arrays import build_request, read_outputs
from synergai.wire.parameters import read_parameters
from tests.tiny_datasets import save_coco, save_imagenet
from tests.tiny_images import BOX, mobilenet_input, picture, save_image_engines


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_image_engines(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def fleet(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway()
        fleet.start_agent("worker", models=models)
        fleet.wait_for_workers(1)
        yield fleet


@pytest.fixture(scope="module")
def colours(models: Path) -> Iterator[HostClient]:
    with HostClient(models, Session(EngineName("colours"), Configuration(1))) as host:
        yield host


def asked(images: Sequence[bytes], *outputs: str, **parameters: bool) -> oip.ModelInferRequest:
    inputs = {"input:0": np.array(images, object)}
    return build_request("colours", inputs, outputs=outputs, parameters=parameters)


def answer(host: HostClient, request: oip.ModelInferRequest) -> oip.ModelInferResponse:
    ended, response = host.query(request.SerializeToString())
    assert ended.outcome is Outcome.COMPLETED, ended.detail
    return oip.ModelInferResponse.FromString(response)


def classified(request: oip.ModelInferRequest, count: int) -> oip.ModelInferRequest:
    request.outputs.add(name="p:0").parameters["classification"].int64_param = count
    return request


# --- the engine host ------------------------------------------------------------------------


def test_a_batch_of_jpeg_and_png_is_answered_image_by_image(colours: HostClient) -> None:
    images = [picture("red"), picture("blue", ".png"), picture("green")]

    response = answer(colours, asked(images, "classes"))

    assert read_outputs(response)["classes"].tolist() == [0, 2, 1]
    assert response.outputs[0].datatype == "INT64"


def test_classification_gives_values_and_classes(colours: HostClient) -> None:
    response = answer(colours, classified(asked([picture("red"), picture("blue")]), 2))

    best = read_outputs(response)["p:0"]
    assert best.shape == (2, 2)
    value, index = best[1, 0].split(b":")
    assert (float(value) > 0, index) == (True, b"2")


@pytest.mark.parametrize(
    ("image", "expected"),
    [(b"no image", "not an image"), (b"", "not an image"), (picture("red")[:150], "image")],
)
def test_bad_image_is_bad_input_and_fails_alone(
    colours: HostClient, image: bytes, expected: str
) -> None:
    ended, _ = colours.query(asked([picture("red"), image]).SerializeToString())

    assert (ended.outcome, ended.fault) == (Outcome.FAILED, Fault.BAD_INPUT)
    assert expected in ended.detail
    assert answer(colours, asked([picture("red")])).outputs


def test_timings_are_separate_and_only_on_request(colours: HostClient) -> None:
    image = picture("red", height=1000, width=1500)

    query = asked([image], synergai_timings=True)
    timed = [read_parameters(answer(colours, query).parameters) for _ in range(10)]

    names = {f"synergai_{phase}_us" for phase in ("preprocess", "compute", "postprocess")}
    assert all(set(each) == names for each in timed)
    # The lowest ones, since other processes may delay any of them.
    least = {name: min(int(each[name]) for each in timed) for name in names}
    assert least["synergai_preprocess_us"] > least["synergai_postprocess_us"] >= 0
    assert not answer(colours, asked([image], synergai_timings=False)).parameters
    assert not answer(colours, asked([image])).parameters


def test_engine_whose_model_does_not_fit_its_preprocessing_is_not_loaded(tmp_path: Path) -> None:
    models = save_image_engines(tmp_path / "models")
    (models / "colours" / "engine.toml").write_text('preprocess = "ssd"\n')

    with pytest.raises(EngineUnusable, match="yields images of 300 x 300 pixels"):
        HostClient(models, Session(EngineName("colours"), Configuration(1)))


def test_labels_are_classes_and_not_output_indices(tmp_path: Path) -> None:
    models = save_image_engines(tmp_path / "models")
    images = np.concatenate([mobilenet_input(picture(name)) for name in ("red", "blue")])
    write_samples(models / "colours", {"input:0": images, "labels": np.array([0, 1])})

    with HostClient(models, Session(EngineName("colours"), Configuration(1))) as host:
        tally = host.run_samples(0, 2).tally

    assert (tally.labelled, tally.correct) == (2, 1)


# --- through the gateway --------------------------------------------------------------------


async def test_client_sends_images_and_gets_classes(fleet: LocalFleet) -> None:
    async with synergai.Client(fleet.address) as client:
        images = [picture("green"), picture("blue")]
        result = await client.infer("colours", {"input:0": images}, outputs=["classes"])
        assert result["classes"].tolist() == [1, 2]
        with pytest.raises(InvalidInput, match="the data is not an image"):
            await client.infer("colours", {"input:0": [b"no image"]})
        with pytest.raises(InvalidInput, match="accepts encoded images as BYTES"):
            await client.infer("colours", {"input:0": np.array([images], object)})


async def test_client_streams_images_and_gets_boxes(fleet: LocalFleet) -> None:
    queries = [{"image_tensor:0": [picture(name, ".png")]} for name in ("blue", "red")]
    async with synergai.Client(fleet.address) as client:
        results = client.stream("detector", queries, outputs=["boxes"])
        found = [result["boxes"] async for result in results]
    assert [boxes.dtype for boxes in found] == [np.float32, np.float32]
    assert [boxes.shape for boxes in found] == [(1, 7), (1, 7)]
    assert found[0][0].tolist() == pytest.approx([0, *BOX, 0.5, 3])
    assert found[1][0].tolist() == pytest.approx([0, *BOX, 0.5, 1])


# Its stubs and ours cannot live in one process.
TRITON = """
import sys
import numpy as np
import tritonclient.grpc as triton

image = triton.InferInput("input:0", [1], "BYTES")
image.set_data_from_numpy(np.array([sys.stdin.buffer.read()], dtype=object))
wanted = [triton.InferRequestedOutput("p:0", class_count=1), triton.InferRequestedOutput("classes")]
result = triton.InferenceServerClient(sys.argv[1]).infer("colours", [image], outputs=wanted)
print(result.as_numpy("p:0")[0, 0].decode().partition(":")[2], result.as_numpy("classes")[0])
"""


async def test_unmodified_tritonclient_classifies_an_image(
    fleet: LocalFleet,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TRITON, fleet.address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(picture("green"))
    assert out.decode() == "1 1\n"


# --- accuracy, from LoadGen's accuracy log --------------------------------------------------


async def loadgen(
    fleet: LocalFleet, engine: str, dataset: str, data: Path, *scenario: str
) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synergai", "loadgen", engine, "--target", fleet.address),
        *("--dataset", dataset, "--data", str(data), "--output", str(data / "logs")),
        *("--mode", "accuracy", "--json", "--scenario", *scenario),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("engine", "dataset", "scenario", "measure"),
    [
        ("colours", "imagenet", ["SingleStream"], "top-1"),
        ("detector", "coco", ["Server", "--rate", "100"], "mAP"),
    ],
)
async def test_accuracy_uses_the_measure_of_the_data_set(
    fleet: LocalFleet,
    tmp_path: Path,
    engine: str,
    dataset: str,
    scenario: list[str],
    measure: str,
) -> None:
    save = {"imagenet": save_imagenet, "coco": save_coco}[dataset]
    save(tmp_path, ["red", "green", "blue", "blue"])
    code, out, err = await loadgen(fleet, engine, dataset, tmp_path, *scenario)
    assert code == 0, err
    report = json.loads(out)
    assert report["accuracy"] == pytest.approx(1.0)
    assert (report["measure"], report["evaluated"], report["failed"]) == (measure, 4, 0)
    assert report["inputs"] == f"4 of 4 images of {tmp_path}"


async def test_image_that_cannot_be_read_ends_the_run_with_its_name(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    save_imagenet(tmp_path, ["red", "green"])
    unreadable = tmp_path / "ILSVRC2012_val_00000002.JPEG"
    unreadable.unlink()
    unreadable.mkdir()
    code, out, err = await loadgen(fleet, "colours", "imagenet", tmp_path, "SingleStream")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == f"error: {unreadable} cannot be read: Is a directory"
