import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from synergai.client.input_sources import ArraySource, IterableSource, read_messages
from synergai.client.upload_messages import InputEncoder, MessageBuilder, UploadMessage
from synergai.data.items import NamedInput, Unusable
from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.v1.jobs_pb2 import Input, UploadReceipt, UploadRequest
from synergai.wire.arrays import read_tensors
from synergai.wire.validation import check_request
from tests.engines import new_engine
from tests.waiting import turns

LIMIT = 6 << 20


def an_engine(*inputs: TensorSpec, preprocess: str = "") -> Engine:
    return new_engine("engine", inputs, (TensorSpec("y", "FP32", (-1,)),), preprocess=preprocess)


IMAGES = an_engine(TensorSpec("image", "FP32", (1, 8, 8, 3)), preprocess="mobilenet")
ROWS = an_engine(TensorSpec("x", "FP32", (-1, 2)))
PAIRS = an_engine(TensorSpec("a", "INT64", (-1, 1)), TensorSpec("b", "BYTES", (-1, 1)))


def test_output_that_the_engine_lacks_is_refused_before_any_input() -> None:
    with pytest.raises(InvalidInput, match=r"has no output 'z'; it has 'y'"):
        InputEncoder(ROWS, ("y", "z"), LIMIT)


def built(engine: Engine, *values: object, outputs: tuple[str, ...] = ()) -> list[UploadMessage]:
    builder = MessageBuilder(InputEncoder(engine, outputs, LIMIT), 5)
    messages = [
        builder.add(NamedInput(f"{number}.jpg", value)) for number, value in enumerate(values)
    ]
    return [each for each in (*messages, builder.take()) if each]


def inputs_of(messages: list[UploadMessage]) -> list[Input]:
    """Return the inputs of messages, whose positions must be those that they claim."""
    found: list[Input] = []
    for message in messages:
        request = UploadRequest.FromString(message.data)
        assert (message.first, message.count) == (5 + len(found), len(request.inputs))
        assert request.first == message.first
        found += request.inputs
    return found


def one(engine: Engine, value: object, outputs: tuple[str, ...] = ()) -> Input:
    [found] = inputs_of(built(engine, value, outputs=outputs))
    return found


def tensors(found: Input) -> dict[str, Any]:
    request = ModelInferRequest.FromString(found.request)
    return read_tensors(request.inputs, request.raw_input_contents)


def reason(message: UploadMessage) -> str:
    [failure] = message.unusable
    found = UploadRequest.FromString(message.data).inputs[failure.index - message.first]
    request = ModelInferRequest.FromString(found.request)
    with pytest.raises(InvalidInput) as caught:
        check_request(request, IMAGES)
    assert (str(caught.value), found.name) == (failure.reason, failure.name)
    return failure.reason


def test_image_is_one_element_of_bytes() -> None:
    found = one(IMAGES, b"jpeg", outputs=("y",))
    request = ModelInferRequest.FromString(found.request)
    check_request(request, IMAGES)
    assert (found.name, tensors(found)["image"].tolist()) == ("0.jpg", [b"jpeg"])
    assert [output.name for output in request.outputs] == ["y"]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2]),
        np.array([[1.0, 2.0]]),
        [1, 2],
        {"x": np.array([1.0, 2.0], ">f4")},
        {"x": np.array([1.0, 2.0], np.float32)},
    ],
)
def test_value_is_cast_to_the_input_of_the_engine(value: object) -> None:
    array = tensors(one(ROWS, value))["x"]
    assert (array.dtype, array.tolist()) == (np.float32, [[1.0, 2.0]])


def test_large_array_that_is_not_contiguous_is_sent_row_by_row() -> None:
    engine = an_engine(TensorSpec("x", "FP32", (-1, 2000)))
    array = np.random.default_rng(1).random((2000, 4)).astype(np.float32).T
    np.testing.assert_array_equal(tensors(one(engine, array))["x"], array)


def test_encoded_image_in_a_row_is_not_a_tensor() -> None:
    assert tensors(one(IMAGES, {"image": b"jpeg"}))["image"].tolist() == [b"jpeg"]


@pytest.mark.parametrize(
    ("engine", "value", "expected"),
    [
        (ROWS, np.array([1.5e300, 0]), "cannot be represented as FP32"),
        (PAIRS, {"a": 0.5, "b": "x"}, "0.5 cannot be represented as INT64"),
        (ROWS, np.zeros(3), r"input 'x' must have shape \[-1, 2\], not \[1, 3\]"),
        (ROWS, ["a", "b"], "FP32 takes numbers, not 'a'"),
        (ROWS, {"z": [1, 2]}, "no input 'z'; its inputs are x"),
        (ROWS, {"x": None}, "input 'x': it has no value"),
        (ROWS, b"jpeg", "takes tensors only, not a file"),
        (PAIRS, [1], "has the inputs a, b: pass a mapping"),
        (PAIRS, {"a": 1}, "lacks input 'b'"),
        (IMAGES, Unusable("the file is empty"), "the file is empty"),
        (IMAGES, bytes(LIMIT), "the limit of a message is 6,291,456"),
        (ROWS, {"x": {}}, "FP32 takes numbers"),
    ],
)
def test_input_that_does_not_suit_leaves_its_reason(
    engine: Engine, value: object, expected: str
) -> None:
    [message] = built(engine, value)
    with pytest.raises(InvalidInput, match=expected):
        raise InvalidInput(reason(message))


def test_messages_are_bounded_and_a_larger_input_travels_alone() -> None:
    sizes = [600_000, 600_000, 600_000, 600_000, 10, 5_000_000, 10]
    messages = built(IMAGES, *map(bytes, sizes))
    assert [message.count for message in messages] == [4, 1, 1, 1]
    assert [len(each.request) > size for each, size in zip(inputs_of(messages), sizes, strict=True)]


def test_rows_are_read_from_any_position() -> None:
    source = ArraySource({"x": np.arange(8.0).reshape(4, 2)}, ROWS)
    assert [(each.name, each.value["x"].tolist()) for each in source.read(2)] == [
        ("2", [4.0, 5.0]),
        ("3", [6.0, 7.0]),
    ]
    with pytest.raises(InvalidInput, match="there are arrays z; engine 'engine' needs x"):
        ArraySource({"z": np.zeros(2)}, ROWS)


def test_names_are_valid_and_bounded() -> None:
    builder = MessageBuilder(InputEncoder(IMAGES, (), LIMIT), 0)
    builder.add(NamedInput("\udcff" + 5000 * "x" + ".jpg", b"jpeg"))
    message = builder.take()
    assert message is not None
    name = UploadRequest.FromString(message.data).inputs[0].name
    assert (name[0], name[-4:], len(name)) == ("…", ".jpg", 1024)


async def test_iterable_that_waits_takes_no_thread_from_others() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    go_on = threading.Event()

    def rows() -> Iterator[list[float]]:
        go_on.wait(30)
        yield [1.0, 2.0]

    async def upload() -> int:
        source = IterableSource(rows())
        encoder = InputEncoder(ROWS, (), LIMIT)
        messages = read_messages(source, encoder, UploadReceipt(), compare=True)
        return sum([message.count async for message in messages])

    uploading = asyncio.create_task(upload())
    await turns()
    async with asyncio.timeout(10):
        await asyncio.to_thread(go_on.set)
        assert await uploading == 1
