"""A real engine host with real models, driven over its socket."""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from profiler.measuring.host_client import HostClient
from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import EngineUnusable
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.wire.arrays import build_request
from tests.integration.worker_agent.conftest import request
from worker_agent.ipc import INLINE_BYTES


def session(engine: str) -> Session:
    return Session(EngineName(engine), Configuration(1))


@pytest.fixture(scope="module")
def twice(models: Path) -> Iterator[HostClient]:
    with HostClient(models, session("twice")) as host:
        yield host


def answer(host: HostClient, data: bytes) -> ModelInferResponse:
    ended, response = host.query(data)
    assert ended.outcome is Outcome.COMPLETED, ended.detail
    return ModelInferResponse.FromString(response)


def test_threads_of_a_host_stay_on_its_cores(models: Path) -> None:
    last = max(os.sched_getaffinity(0))
    with HostClient(models, session("twice"), cores=(last,)) as host:
        cores = set()
        for task in Path(f"/proc/{host.pid}/task").iterdir():
            with suppress(ProcessLookupError):  # the thread has ended since it was listed
                cores |= os.sched_getaffinity(int(task.name))
        assert cores == {last}


def test_query_is_answered_with_raw_tensors(twice: HostClient) -> None:
    array = np.array([[1, 2], [3, 4]], np.float32)
    message = build_request("twice", {"x": array})
    message.id = "7"
    response = answer(twice, message.SerializeToString())
    assert (response.model_name, response.model_version, response.id) == ("twice", "1", "7")
    assert [(out.name, out.datatype, list(out.shape)) for out in response.outputs] == [
        ("y", "FP32", [2, 2]),
        ("z", "FP32", [2, 2]),
    ]
    y, z = (np.frombuffer(raw, np.float32) for raw in response.raw_output_contents)
    assert y.tolist() == [2, 4, 6, 8]
    assert z.tolist() == [-1, -2, -3, -4]


@pytest.mark.parametrize("rows", [INLINE_BYTES // 8 - 100, INLINE_BYTES, 1_000_000])
def test_tensors_of_any_size_round_trip(twice: HostClient, rows: int) -> None:
    array = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    response = answer(twice, request(array, "z"))
    assert response.raw_output_contents[0] == (-array).tobytes()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xff", "not a valid inference.ModelInferRequest"),
        (request(np.ones((1, 3), np.float32)), "must have shape"),
        (request(np.ones((1, 2), np.float32), "q"), "no output 'q'"),
    ],
)
def test_bad_query_fails_alone(twice: HostClient, data: bytes, expected: str) -> None:
    ended, _ = twice.query(data)
    assert (ended.outcome, ended.fault) == (Outcome.FAILED, Fault.BAD_INPUT)
    assert expected in ended.detail
    assert answer(twice, request(np.ones((1, 2), np.float32))).outputs


def test_bytes_tensors_are_length_prefixed_both_ways(models: Path) -> None:
    texts = [b"", "größer".encode(), b"x" * 300]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    with HostClient(models, session("texts")) as host:
        response = answer(host, request(np.array(texts, object)))
    assert response.outputs[0].datatype == "BYTES"
    assert list(response.raw_output_contents) == [raw]


def test_invalid_utf8_is_bad_input(models: Path) -> None:
    with HostClient(models, session("texts")) as host:
        ended, _ = host.query(request(np.array([b"\xff"], object)))
    assert (ended.fault, ended.detail) == (Fault.BAD_INPUT, "input 'x' must contain UTF-8 strings")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("impossible", "ONNX Runtime cannot load model.onnx: .*NoSuchOperator"),
        ("truncated", "model.onnx is damaged, or not an ONNX model"),
        ("nothing", "no model file"),
    ],
)
def test_unusable_model_is_explained_in_one_line(models: Path, engine: str, expected: str) -> None:
    with pytest.raises(EngineUnusable, match=expected) as caught:
        HostClient(models, session(engine))
    assert "\n" not in str(caught.value)
    assert str(models) not in str(caught.value)
