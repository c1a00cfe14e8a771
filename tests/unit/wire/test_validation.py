"""Validation of requests by `check_request`."""

import struct
import tracemalloc
from typing import Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import InferParameter, InferTensorContents, ModelInferRequest
from synergai.wire.request_codec import RequestDecoder
from synergai.wire.validation import (
    ELEMENT_BYTES,
    MAX_BYTES_ELEMENTS,
    MAX_IMAGES,
    TYPED_FIELDS,
    check_header,
    check_request,
    classification_count,
)
from tests.engines import new_engine
from tests.message_fields import RequestFields


def engine(*inputs: TensorSpec, outputs: tuple[str, ...] = ("y",)) -> Engine:
    return new_engine("digits", inputs, tuple(TensorSpec(name, "FP32", (-1,)) for name in outputs))


IMAGE = TensorSpec("x", "FP32", (-1, 2))
ENGINE = engine(IMAGE)


def tensor(
    name: str = "x",
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 2),
    contents: InferTensorContents | None = None,
) -> ModelInferRequest.InferInputTensor:
    return ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, contents=contents
    )


def request(
    *tensors: ModelInferRequest.InferInputTensor,
    raw: tuple[bytes, ...] = (),
    **fields: Unpack[RequestFields],
) -> ModelInferRequest:
    usual: RequestFields = {"model_name": "digits", "raw_input_contents": raw}
    return ModelInferRequest(inputs=tensors, **(usual | fields))


def outputs(*names: str) -> list[ModelInferRequest.InferRequestedOutputTensor]:
    return [ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names]


def element(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    "good",
    [
        request(tensor(), raw=(bytes(8),)),
        request(tensor(shape=(3, 2)), raw=(bytes(24),)),
        request(tensor(contents=InferTensorContents(fp32_contents=[1, 2]))),
        request(tensor(), raw=(bytes(8),), outputs=outputs("y")),
        request(tensor(), raw=(bytes(8),), model_version="1"),
        request(tensor(shape=(0, 2)), raw=(b"",)),
        request(tensor(shape=(0, 2))),
    ],
)
def test_valid_request_passes(good: ModelInferRequest) -> None:
    check_request(good, ENGINE)


def test_empty_tensor_bounds_its_other_dimensions() -> None:
    pairs = engine(TensorSpec("x", "FP32", (-1, -1)))
    check_request(request(tensor(shape=(0, 1 << 24)), raw=(b"",)), pairs)
    with pytest.raises(InvalidInput, match="its other dimensions too large"):
        check_request(request(tensor(shape=(0, 1 << 25)), raw=(b"",)), pairs)


def test_template_is_validated_again_for_another_engine() -> None:
    decoder = RequestDecoder()
    data = request(tensor(), raw=(bytes(8),)).SerializeToString()
    check_header(decoder.decode(data), ENGINE)
    check_header(decoder.decode(data), ENGINE)
    with pytest.raises(InvalidInput, match="must be FP64"):
        check_header(decoder.decode(data), engine(TensorSpec("x", "FP64", (-1, 2))))
    check_header(decoder.decode(data), ENGINE)


def test_bytes_elements_are_checked_in_every_request() -> None:
    decoder = RequestDecoder()
    texts = tensor(datatype="BYTES", shape=(1,))
    good = request(texts, raw=(element(b"ab"),)).SerializeToString()
    check_header(decoder.decode(good), TEXTS)
    check_header(decoder.decode(good), TEXTS)
    bad = request(texts, raw=(element(b"abc")[:-1],)).SerializeToString()
    with pytest.raises(InvalidInput, match="BYTES"):
        check_header(decoder.decode(bad), TEXTS)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (request(tensor("z"), raw=(bytes(8),)), "no input 'z'; it has 'x'"),
        (request(), "lacks input 'x'"),
        (request(tensor(), tensor(), raw=(bytes(8), bytes(8))), "'x' is given twice"),
        (request(tensor(datatype="FP64"), raw=(bytes(16),)), "must be FP32, not FP64"),
        (request(tensor(datatype=""), raw=(bytes(8),)), "must be FP32, not untyped"),
        (
            request(tensor(shape=(2,)), raw=(bytes(8),)),
            r"shape \[-1, 2\], not \[2\]: add the batch dimension, shape \[1, 2\]$",
        ),
        (request(tensor(shape=(3,)), raw=(bytes(12),)), r"not \[3\]$"),
        (request(tensor(shape=(1, 3)), raw=(bytes(12),)), r"not \[1, 3\]"),
        (request(tensor(shape=(-1, 2)), raw=(bytes(8),)), r"not \[-1, 2\]"),
        (request(tensor(shape=(-3, 2)), raw=(bytes(8),)), r"not \[-3, 2\]"),
        (request(tensor(shape=(1, 0)), raw=(b"",)), r"not \[1, 0\]$"),
        (request(tensor(shape=(0, 2)), raw=(bytes(8),)), "needs 0 bytes .* not 8"),
        (request(tensor(shape=(0, 2**40)), raw=(b"",)), r"not \[0, 1099511627776\]"),
        (request(tensor(shape=(2**62, 2)), raw=(bytes(8),)), "needs 36,893,488,147,419,103,232"),
        (request(tensor(), raw=(bytes(7),)), "needs 8 bytes .* not 7"),
        (request(tensor(), raw=(bytes(8), bytes(8))), "2 entries for 1 inputs"),
        (
            request(tensor(contents=InferTensorContents(fp32_contents=[1, 2])), raw=(bytes(8),)),
            "typed contents as well as raw",
        ),
        (
            request(tensor(contents=InferTensorContents(fp32_contents=[1]))),
            "needs 2 elements for its shape, not 1",
        ),
        (request(tensor()), "needs 2 elements for its shape, not 0"),
        (
            request(tensor(contents=InferTensorContents(fp64_contents=[1, 2]))),
            "belongs in fp32_contents, not in fp64",
        ),
        (request(tensor(), raw=(bytes(8),), outputs=outputs("q")), "no output 'q'"),
        (
            request(tensor(), raw=(bytes(8),), outputs=outputs("classes")),
            "it has 'y'; set postprocess = 'classes' in its engine.toml",
        ),
        (
            request(tensor(), raw=(bytes(8),), outputs=outputs("y", "y")),
            "output 'y' of engine .* is requested twice",
        ),
        (request(tensor(), raw=(bytes(8),), model_version="2"), "version '1', not '2'"),
    ],
)
def test_invalid_request_is_rejected_with_a_reason(bad: ModelInferRequest, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_request(bad, ENGINE)


def test_negative_dimensions_are_rejected_even_if_their_product_is_positive() -> None:
    open_engine = engine(TensorSpec("x", "FP32", (-1, -1)))
    with pytest.raises(InvalidInput, match=r"not \[-1, -1\]"):
        check_request(request(tensor(shape=(-1, -1)), raw=(bytes(4),)), open_engine)


@pytest.mark.parametrize(("datatype", "value"), [("INT8", 128), ("UINT8", 256), ("INT16", -40000)])
def test_element_out_of_range_is_rejected(datatype: str, value: int) -> None:
    narrow = engine(TensorSpec("x", datatype, (1,)))
    sent = tensor(datatype=datatype, shape=(1,))
    getattr(sent.contents, TYPED_FIELDS[datatype]).append(value)
    with pytest.raises(InvalidInput, match=f"out of range for {datatype}"):
        check_request(request(sent), narrow)


def test_sixteen_bit_floats_have_no_typed_contents() -> None:
    half = engine(TensorSpec("x", "FP16", (1,)))
    with pytest.raises(InvalidInput, match="send raw_input_contents"):
        check_request(request(tensor(datatype="FP16", shape=(1,))), half)


TEXTS = engine(TensorSpec("x", "BYTES", (-1,)))


@pytest.mark.parametrize(
    "raw", [b"", b"\x01", element(b"ab")[:-1], element(b"ab") * 2, b"\xff\xff\xff\xff"]
)
def test_bytes_elements_without_valid_lengths_are_rejected(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="BYTES elements"):
        check_request(request(tensor(datatype="BYTES", shape=(1,)), raw=(raw,)), TEXTS)


def test_bytes_tensor_with_too_many_elements_is_rejected_unread() -> None:
    many = tensor(datatype="BYTES", shape=(MAX_BYTES_ELEMENTS + 1,))
    with pytest.raises(InvalidInput, match="the limit is"):
        check_request(request(many, raw=(bytes(4 * (MAX_BYTES_ELEMENTS + 1)),)), TEXTS)


@given(st.sampled_from(sorted(ELEMENT_BYTES)), st.integers(1, 5), st.integers(0, 64))
def test_raw_bytes_pass_exactly_when_they_match_the_shape(
    datatype: str, count: int, size: int
) -> None:
    fitting = size == count * ELEMENT_BYTES[datatype]
    sent = request(tensor(datatype=datatype, shape=(count,)), raw=(bytes(size),))
    try:
        check_request(sent, engine(TensorSpec("x", datatype, (-1,))))
    except InvalidInput:
        assert not fitting
    else:
        assert fitting


SIZES = st.integers(-3, 3) | st.sampled_from([2**31, 2**63 - 1, -(2**63)])
TENSORS = st.builds(
    tensor,
    st.sampled_from(["x", "z", ""]),
    st.sampled_from(["FP32", "BYTES", "FP16", "nonsense", ""]),
    st.lists(SIZES, max_size=3).map(tuple),
    contents=st.builds(
        InferTensorContents, fp32_contents=st.lists(st.floats(width=32), max_size=3)
    ),
)


@given(st.lists(TENSORS, max_size=3), st.lists(st.binary(max_size=16), max_size=3))
def test_any_request_passes_or_is_invalid_input(
    tensors: list[ModelInferRequest.InferInputTensor], raw: list[bytes]
) -> None:
    sent = request(*tensors, raw=tuple(raw))
    try:
        check_request(sent, ENGINE)
    except InvalidInput:
        return
    (only,) = tensors
    assert (only.name, only.datatype, only.shape[1]) == ("x", "FP32", 2)
    assert only.shape[0] > 0


PIXELS = TensorSpec("x", "FP32", (-1, 3, 224, 224))
OF_IMAGES = replace(engine(PIXELS), preprocess="mobilenet", postprocess="classes")


def encoded(*images: bytes, shape: tuple[int, ...] | None = None) -> ModelInferRequest:
    shape = (len(images),) if shape is None else shape
    return request(tensor(datatype="BYTES", shape=shape), raw=(b"".join(map(element, images)),))


@pytest.mark.parametrize(
    "good",
    [
        encoded(b"jpeg"),
        encoded(b"jpeg", b"png"),
        request(
            tensor(
                datatype="BYTES", shape=(1,), contents=InferTensorContents(bytes_contents=[b"jpeg"])
            )
        ),
        request(tensor(shape=(1, 3, 224, 224)), raw=(bytes(4 * 3 * 224 * 224),)),
    ],
)
def test_encoded_images_are_accepted_in_place_of_the_tensor(
    good: ModelInferRequest,
) -> None:
    check_request(good, OF_IMAGES)


@pytest.mark.parametrize(
    ("bad", "takes", "said"),
    [
        (encoded(b"jpeg"), engine(PIXELS), "must be FP32, not BYTES"),
        (encoded(b"jpeg", shape=(1, 1)), OF_IMAGES, r"of shape \[-1\]"),
        (encoded(), OF_IMAGES, r"not \[0\]"),
        (encoded(shape=()), OF_IMAGES, r"not \[\]"),
        (encoded(*[b""] * (MAX_IMAGES + 1)), OF_IMAGES, f"from 1 to {MAX_IMAGES}"),
        (encoded(), OF_IMAGES, f"from 1 to {MAX_IMAGES}"),
        (encoded(b"jpeg", shape=(2,)), OF_IMAGES, "its data is not 2 BYTES elements"),
        (
            encoded(b"a", b"b"),
            replace(OF_IMAGES, inputs=(TensorSpec("x", "FP32", (1, 3, 4, 4)),)),
            r"of shape \[1\]",
        ),
        (
            encoded(shape=()),
            replace(OF_IMAGES, inputs=(TensorSpec("x", "FP32", ()),)),
            "accepts encoded images",
        ),
    ],
)
def test_invalid_encoded_images_are_rejected(
    bad: ModelInferRequest, takes: Engine, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_request(bad, takes)


def test_only_the_first_input_accepts_images() -> None:
    mask = TensorSpec("mask", "FP32", (-1,))
    both = replace(OF_IMAGES, inputs=(PIXELS, mask))
    sent = request(
        tensor(datatype="BYTES", shape=(1,)),
        tensor(name="mask", datatype="BYTES", shape=(1,)),
        raw=(element(b"jpeg"), element(b"jpeg")),
    )

    with pytest.raises(InvalidInput, match="'mask' must be FP32"):
        check_request(sent, both)


def test_derived_output_may_be_requested_if_it_exists() -> None:
    asking = encoded(b"jpeg")
    asking.outputs.extend(outputs("classes", "y"))

    check_request(asking, OF_IMAGES)
    with pytest.raises(InvalidInput, match="no output 'classes'"):
        check_request(asking, replace(OF_IMAGES, postprocess=""))


def test_output_may_be_requested_as_its_top_classes() -> None:
    (asked,) = outputs("y")
    assert classification_count(asked) == 0
    asked.parameters["classification"].int64_param = 3
    assert classification_count(asked) == 3
    asked.parameters["classification"].uint64_param = 4
    assert classification_count(asked) == 4


@pytest.mark.parametrize(
    "value",
    [
        InferParameter(int64_param=0),
        InferParameter(int64_param=-1),
        InferParameter(string_param="3"),
    ],
)
def test_number_of_classes_is_a_positive_integer(value: InferParameter) -> None:
    asking = request(tensor(), raw=(bytes(8),), outputs=outputs("y"))
    asking.outputs[0].parameters["classification"].CopyFrom(value)

    with pytest.raises(InvalidInput, match="'classification' must be a positive integer"):
        check_request(asking, ENGINE)


def test_derived_output_cannot_be_classified() -> None:
    asking = encoded(b"jpeg")
    asking.outputs.extend(outputs("classes"))
    asking.outputs[0].parameters["classification"].int64_param = 1

    with pytest.raises(InvalidInput, match="cannot be classified"):
        check_request(asking, OF_IMAGES)


def test_shape_of_many_dimensions_is_refused_at_little_cost() -> None:
    given = request(tensor(shape=(1,) * 500_000))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"not \[1, 1, .*, \.\.\.\]"):
            check_request(given, ENGINE)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
