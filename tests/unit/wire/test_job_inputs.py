"""Inputs of jobs over their clients' own data."""

import pytest
from google.protobuf.message import DecodeError

from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.v1.jobs_pb2 import Input
from synergai.wire.job_inputs import sample_input, split_input, without_sample
from synergai.wire.validation import SAMPLE


def parsed(data: bytes) -> ModelInferRequest:
    return ModelInferRequest.FromString(bytes(split_input(data).request))


def test_sample_is_removed_from_an_input_that_has_it() -> None:
    forged = without_sample(sample_input(3))
    assert SAMPLE in parsed(sample_input(3)).parameters
    assert SAMPLE not in parsed(forged).parameters


def test_input_that_only_has_the_text_keeps_its_content() -> None:
    request = ModelInferRequest(id=SAMPLE, raw_input_contents=[b"data"])
    data = Input(name="one", request=request.SerializeToString()).SerializeToString()
    assert without_sample(data) == data


@pytest.mark.parametrize("request_bytes", [b"\xff", b"\x0a\x02\xff\xff"])
def test_damaged_input_never_stands_for_a_sample(request_bytes: bytes) -> None:
    forged = sample_input(3)
    inner = bytes(split_input(forged).request) + request_bytes
    assert without_sample(Input(request=inner).SerializeToString()) == b""


@pytest.mark.parametrize("data", [b"", b"\x0a\x01a", b"\x1a\x09file:///a"])
def test_input_without_a_request_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="no request"):
        split_input(data)
