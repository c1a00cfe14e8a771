"""Requests are decoded and responses encoded exactly as protobuf would."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from synergai.wire.request_codec import (
    MAX_FIELDS,
    MAX_TEMPLATES,
    RequestDecoder,
    raw_output_prefix,
    wrap_stream_response,
)

LARGE = 5000
"""More than `SMALL_MESSAGE_BYTES`, up to which protobuf parses the whole request."""


def request(
    tensors: list[bytes], padding: str = "", *, inputs: int | None = None
) -> ModelInferRequest:
    return ModelInferRequest(
        model_name="digits",
        id=padding,
        inputs=[
            ModelInferRequest.InferInputTensor(name=f"x{i}", shape=[len(raw)])
            for i, raw in enumerate(tensors[:inputs])
        ],
        raw_input_contents=tensors,
    )


@given(st.lists(st.binary(max_size=300), max_size=4), st.sampled_from(["", "x" * LARGE]))
def test_raw_tensors_are_split_off_the_message(tensors: list[bytes], padding: str) -> None:
    whole = request(tensors, padding)
    header = RequestDecoder().decode(whole.SerializeToString())
    assert [bytes(raw) for raw in header.raw] == tensors
    whole.ClearField("raw_input_contents")
    assert header.message == whole


def test_large_tensors_stay_views_of_the_received_bytes() -> None:
    data = memoryview(bytearray(request([bytes(LARGE)]).SerializeToString()))
    (raw,) = RequestDecoder().decode(data).raw
    assert isinstance(raw, memoryview)
    data[-1] = 7
    assert raw[-1] == 7


def test_fields_may_be_in_any_order() -> None:
    raw = ModelInferRequest(raw_input_contents=[bytes(LARGE)]).SerializeToString()
    name = ModelInferRequest(model_name="digits").SerializeToString()
    header = RequestDecoder().decode(raw + name + raw)
    assert header.message.model_name == "digits"
    assert len(header.raw) == 2


@given(st.binary(min_size=1, max_size=40), st.booleans())
def test_any_bytes_decode_as_protobuf_does_or_are_invalid_input(noise: bytes, large: bool) -> None:
    data = (request([bytes(LARGE)]).SerializeToString() if large else b"") + noise
    try:
        expected = ModelInferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InvalidInput):
            RequestDecoder().decode(data)
        return
    try:
        header = RequestDecoder().decode(data)
    except InvalidInput:
        # Protobuf still skips the groups of its first version; no client sends them.
        assert any(byte & 7 in (3, 4) for byte in noise)
        return
    assert [bytes(raw) for raw in header.raw] == list(expected.raw_input_contents)


RAW = ModelInferRequest(raw_input_contents=[b"abcd"]).SerializeToString()
INPUTS = tuple(
    ModelInferRequest(inputs=[ModelInferRequest.InferInputTensor(name=name)]).SerializeToString()
    for name in ("x", "y")
)
UNKNOWN = b"\xca\x3e\x06" + RAW
"""An unknown field whose content is the bytes of a known one."""
PIECES = (
    ModelInferRequest(model_name="digits").SerializeToString(),
    ModelInferRequest(model_name="shapes").SerializeToString(),
    ModelInferRequest(id="1").SerializeToString(),
    *INPUTS,
    RAW,
    RAW.replace(b"abcd", b"efgh"),
    RAW.replace(b"\x04abcd", b"\x84\x00abcd"),
    RAW.replace(b"\x04abcd", b"\x02ab"),
    ModelInferRequest(raw_input_contents=[b"a" * LARGE]).SerializeToString(),
    ModelInferRequest(raw_input_contents=[b"b" * LARGE]).SerializeToString(),
    UNKNOWN,
    UNKNOWN.replace(b"abcd", b"efgh"),
    UNKNOWN.replace(RAW, RAW[:2] + RAW[:2] + b"ab"),
    b"\x3a",
)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join), max_size=8))
@example([INPUTS[0] + RAW + end for end in (UNKNOWN, UNKNOWN.replace(b"abcd", b"efgh"))])
def test_decoding_does_not_depend_on_earlier_requests(messages: list[bytes]) -> None:
    decoder = RequestDecoder()
    for data in messages:
        try:
            expected = RequestDecoder().decode(data)
        except InvalidInput:
            with pytest.raises(InvalidInput):
                decoder.decode(data)
            continue
        for way in (data, memoryview(data)):
            header = decoder.decode(way)
            assert header.message == expected.message
            assert [bytes(raw) for raw in header.raw] == [bytes(raw) for raw in expected.raw]


@pytest.mark.parametrize("size", [4, LARGE])
def test_requests_that_differ_only_in_raw_tensors_share_a_template(size: int) -> None:
    decoder = RequestDecoder()
    _, first = (
        decoder.decode(request([bytes(size), bytes(7)]).SerializeToString()) for _ in range(2)
    )
    other = decoder.decode(request([b"x" * size, b"y" * 7]).SerializeToString())
    assert other.template is first.template is not None
    assert other.message is first.message
    assert [bytes(raw) for raw in other.raw] == [b"x" * size, b"y" * 7]


def test_request_with_an_id_parameters_or_no_raw_tensor_has_no_template() -> None:
    with_parameter = request([b"abcd"])
    with_parameter.parameters["priority"].int64_param = 1
    decoder = RequestDecoder()
    for one in 2 * (request([b"abcd"], "id"), with_parameter, request([])):
        assert decoder.decode(one.SerializeToString()).template is None


def test_number_of_templates_is_bounded() -> None:
    decoder = RequestDecoder()
    for size in range(3 * MAX_TEMPLATES):
        data = request([bytes(size)]).SerializeToString()
        assert [decoder.decode(data).template is None for _ in range(2)] == [True, False]
    assert len(decoder._templates) <= MAX_TEMPLATES
    assert len(decoder._seen) <= MAX_TEMPLATES


def test_requests_of_varying_length_evict_no_template() -> None:
    decoder = RequestDecoder()
    usual = request([b"abcd"]).SerializeToString()
    template = [decoder.decode(usual).template for _ in range(2)][-1]
    for size in range(5, 3 * MAX_TEMPLATES):
        assert decoder.decode(request([bytes(size)]).SerializeToString()).template is None
    assert decoder.decode(usual).template is template is not None


def test_request_with_too_many_fields_is_rejected() -> None:
    most = ModelInferRequest(raw_input_contents=[b""] * MAX_FIELDS)
    assert len(RequestDecoder().decode(most.SerializeToString()).raw) == MAX_FIELDS
    most.model_name = "digits"
    with pytest.raises(InvalidInput, match="not a valid"):
        RequestDecoder().decode(most.SerializeToString())


@given(st.binary(max_size=20000))
def test_raw_output_is_appended_to_a_serialised_response(content: bytes) -> None:
    header = ModelInferResponse(model_name="digits").SerializeToString()
    whole = ModelInferResponse.FromString(header + raw_output_prefix(len(content)) + content)
    assert whole.model_name == "digits"
    assert list(whole.raw_output_contents) == [content]


@given(st.binary(max_size=20000))
def test_serialised_response_is_wrapped_for_a_stream(content: bytes) -> None:
    response = ModelInferResponse(id="7", raw_output_contents=[content])
    wrapped = ModelStreamInferResponse.FromString(
        wrap_stream_response(response.SerializeToString())
    )
    assert wrapped.infer_response == response
    assert not wrapped.error_message
