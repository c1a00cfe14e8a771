from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from synergai.domain import Configuration, EngineName, Session
from synergai.models.cutting.exits import MadeExit, make_exits
from synergai.models.cutting.stages import cut_engine
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.protocol.arrays import build_request, read_outputs
from synergai.protocol.validation import CORRECT, DROP, EXIT, LABEL, LEAVE, SAMPLE, STAY
from synergai.zoo import build as zoo
from worker_agent.cli.check import run_samples
from worker_agent.host.tensor_codec import BINARY_PARAMETER
from worker_agent.hosts.sync_client import HostClient

ENGINE = "onnx_digits"
STAGE = f"{ENGINE}.s0-3"
Arrays = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    zoo.build(ENGINE, models)
    return models


@pytest.fixture(scope="module")
def made(models: Path) -> MadeExit:
    engine = cut_engine(models, ENGINE)
    _, [made] = make_exits(engine, models, ["conv1/pool"], run_samples, lambda *_: None, loss=0.05)
    return made


@pytest.fixture(scope="module")
def host(models: Path, made: MadeExit) -> Iterator[HostClient]:
    assert made.exit.rate > 0
    with HostClient(models, Session(EngineName(STAGE), Configuration(1))) as host:
        yield host


@pytest.fixture(scope="module")
def images(models: Path) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.load(models / ENGINE / "samples.npz")["image"]
    return found[:, np.newaxis]


def ask(host: HostClient, message: ModelInferRequest) -> ModelInferResponse:
    _, data = host.query(message.SerializeToString())
    return ModelInferResponse.FromString(data)


def answer(host: HostClient, image: NDArray[np.float32], asked: str) -> tuple[str, Arrays]:
    parameters = {EXIT: asked} if asked else None
    response = ask(host, build_request(STAGE, {"image": image}, parameters=parameters))
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
            assert (at, [*outputs]) == ("conv1/pool", ["probabilities"])
            left += 1
        else:
            assert (at, [*outputs]) == ("", ["conv1/pool"])
    assert 0 < left < 60


def test_the_gateway_may_let_all_queries_stay_or_begin_again_elsewhere(
    host: HostClient, images: NDArray[np.float32]
) -> None:
    for image in images[:20]:
        at, outputs = answer(host, image, STAY)
        assert (at, [*outputs]) == ("", ["conv1/pool"])
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
    """Even if the client asks for typed ones, which its answer has."""
    for asked in (STAY, LEAVE):
        message = build_request(STAGE, {"image": images[0]}, parameters={EXIT: asked})
        message.parameters[BINARY_PARAMETER].bool_param = False
        response = ask(host, message)
        assert bool(response.raw_output_contents) is (asked == STAY)
