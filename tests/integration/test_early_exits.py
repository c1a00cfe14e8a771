"""An engine whose first stage has an early exit."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import synergai
from demo.local_fleet import LocalFleet
from profiler.cutting.stages import MadeExit, cut_engine, make_exits
from profiler.engines.check import run_samples
from profiler.measuring.host_client import HostClient
from profiler.zoo import recipes as zoo
from synergai.domain import Configuration, EngineName, Session
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.wire.arrays import build_request, read_outputs
from synergai.wire.validation import CORRECT, DROP, EXIT, LABEL, LEAVE, SAMPLE, STAY
from worker_agent.host.query_codec import BINARY_PARAMETER

ENGINE = "onnx_digits"
HEAD, TAIL = f"{ENGINE}.s0-3", f"{ENGINE}.s3-11"
CUT = "conv1/pool"
QUERIES = 60
SIZE, REPEATS = 2048, 100
"""Of the matrices that slow an engine down, and their products."""
Answers = list[tuple[int, bool]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    zoo.build(ENGINE, models)
    return models


@pytest.fixture(scope="module")
def made(built: Path) -> MadeExit:
    engine = cut_engine(built, ENGINE)
    _, [made] = make_exits(engine, built, [CUT], run_samples, lambda *_: None, loss=0.02)
    assert 0.1 < made.exit.rate < 0.9
    return made


@pytest.fixture(scope="module")
def images(built: Path) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.load(built / ENGINE / "samples.npz")["image"]
    return found[:QUERIES, np.newaxis]


@pytest.fixture(scope="module")
def expected(built: Path, made: MadeExit, images: NDArray[np.float32]) -> Answers:
    """The class of each image, and whether its query leaves."""
    directory = ModelDirectory(built)
    head, whole = (
        onnxruntime.InferenceSession(directory.get(each).file) for each in (HEAD, ENGINE)
    )
    found: Answers = []
    for image in images:
        [at_exit, _] = head.run(None, {"image": image})
        leaves = bool(at_exit.max() >= made.exit.threshold)
        answer = at_exit if leaves else whole.run(None, {"image": image})[0]
        found.append((int(answer.argmax()), leaves))
    return found


@pytest.fixture(scope="module")
def fleet(
    built: Path, made: MadeExit, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    assert made.exit.output == "probabilities"
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        start(fleet, built, {"head": HEAD, "tail": TAIL})
        yield fleet


def start(
    fleet: LocalFleet, built: Path, engines: dict[str, str], dictionary: Path | None = None
) -> None:
    """Start a gateway, and agents with an engine each, in one thread if there are profiles."""
    fleet.start_gateway([] if dictionary is None else ["--dictionary", str(dictionary)])
    for name, engine in engines.items():
        models = fleet.directory / "models" / name
        shutil.copytree(built / engine, models / engine)
        fleet.start_agent(name, models=models, options=["--threads", "1"] if dictionary else [])
    fleet.wait_for_workers(len(engines))


def test_answer_says_where_its_query_left(
    client: synergai.SyncClient, images: NDArray[np.float32], expected: Answers
) -> None:
    found = [client.infer(ENGINE, {"image": image}) for image in images]
    assert [
        (int(each["probabilities"].argmax()), each.parameters.get("synergai_exit") == CUT)
        for each in found
    ] == expected
    assert {each.version for each in found} == {"1"}


def test_classes_are_asked_for_at_an_exit_as_behind_the_last_stage(
    client: synergai.SyncClient, images: NDArray[np.float32], expected: Answers
) -> None:
    timed = {"synergai_timings": True}
    for image, (_, leaves) in zip(images[:20], expected, strict=False):
        found = client.infer(ENGINE, {"image": image}, outputs=["probabilities"], parameters=timed)
        assert [*found.outputs] == ["probabilities"]
        assert found.parameters["synergai_worker"] == ("head" if leaves else "head tail")


def test_floor_above_the_accuracy_of_the_exit_keeps_queries_from_leaving(
    client: synergai.SyncClient, made: MadeExit, images: NDArray[np.float32]
) -> None:
    whole, with_exit = made.exit.whole_accuracy, made.exit.accuracy
    for image in images[:10]:
        found = client.infer(ENGINE, {"image": image}, min_accuracy=whole)
        assert ("synergai_exit" in found.parameters) <= (with_exit >= whole)
    with pytest.raises(InvalidInput, match="does not reach an accuracy of 1"):
        client.infer(ENGINE, {"image": images[0]}, min_accuracy=1.0)


def test_workers_are_listed_with_the_rate_of_an_exit_that_was_learned(
    client: synergai.SyncClient, made: MadeExit, images: NDArray[np.float32], expected: Answers
) -> None:
    number = next(number for number, (_, leaves) in enumerate(expected) if leaves)
    for _ in range(60):
        client.infer(ENGINE, {"image": images[number]})
    [rate] = [
        engine.exit.rate
        for worker in client.workers()
        for engine in worker.engines
        if engine.exit is not None
    ]
    assert made.exit.rate < rate < 1


def test_results_of_a_job_are_in_order_and_each_there_once(
    client: synergai.SyncClient, images: NDArray[np.float32], expected: Answers
) -> None:
    queries = [{"image": image} for image in images]
    handle = client.submit(ENGINE, inputs=queries * 5, qos=60.0)
    results = list(handle.results())
    assert [index for index, _ in results] == list(range(5 * len(queries)))
    assert [int(result.outputs["probabilities"].argmax()) for _, result in results] == [
        each for each, _ in expected
    ] * 5


def test_samples_of_a_job_are_right_as_often_as_the_calibration_says(
    client: synergai.SyncClient, made: MadeExit
) -> None:
    status = client.submit(ENGINE, queries=450, qos=60.0).wait()
    status.raise_unless_succeeded()
    assert status.accuracy == pytest.approx(made.exit.accuracy, abs=0.02)
    assert {each.worker_id for each in status.executions} <= {"head", "head tail"}


# --- in an engine host ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(built: Path, made: MadeExit) -> Iterator[HostClient]:
    """An engine host of the stage, whose exit `made` makes."""
    assert made.exit.output == "probabilities"
    with HostClient(built, Session(EngineName(HEAD), Configuration(1))) as host:
        yield host


def ask(host: HostClient, message: ModelInferRequest) -> ModelInferResponse:
    _, data = host.query(message.SerializeToString())
    return ModelInferResponse.FromString(data)


def answer(
    host: HostClient, image: NDArray[np.float32], asked: str
) -> tuple[str, dict[str, NDArray[np.float32]]]:
    parameters = {EXIT: asked} if asked else None
    response = ask(host, build_request(HEAD, {"image": image}, parameters=parameters))
    return response.parameters[EXIT].string_param, read_outputs(response)


def test_sure_queries_leave_with_their_answer_and_others_go_on(
    host: HostClient, made: MadeExit, images: NDArray[np.float32]
) -> None:
    left = 0
    for image in images[:60]:
        at, outputs = answer(host, image, "")
        [probabilities] = answer(host, image, LEAVE)[1].values()
        assert probabilities.shape == (1, 10)
        if probabilities.max() >= made.exit.threshold:
            assert (at, [*outputs]) == (CUT, ["probabilities"])
            left += 1
        else:
            assert (at, [*outputs]) == ("", [CUT])
    assert 0 < left < 60


def test_the_gateway_may_let_all_queries_stay_or_begin_again_elsewhere(
    host: HostClient, images: NDArray[np.float32]
) -> None:
    for image in images[:20]:
        at, outputs = answer(host, image, STAY)
        assert (at, [*outputs]) == ("", [CUT])
        at, outputs = answer(host, image, DROP)
        assert [*outputs] == (["probabilities"] if at else [])


def test_only_answers_to_samples_are_right_or_wrong(host: HostClient) -> None:
    for asked, answers in ((LEAVE, True), (STAY, False)):
        message = ModelInferRequest()
        message.parameters[SAMPLE].int64_param = 3
        message.parameters[EXIT].string_param = asked
        response = ask(host, message)
        assert LABEL in response.parameters
        assert (CORRECT in response.parameters) is answers


def test_contents_for_the_next_stage_are_raw(host: HostClient, images: NDArray[np.float32]) -> None:
    for asked in (STAY, LEAVE):  # although the client asks for typed ones, which its answer has
        message = build_request(HEAD, {"image": images[0]}, parameters={EXIT: asked})
        message.parameters[BINARY_PARAMETER].bool_param = False
        response = ask(host, message)
        assert bool(response.raw_output_contents) is (asked == STAY)
