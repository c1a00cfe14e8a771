"""Requests and responses in REST form, and what is wrong with damaged ones."""

import json
import random
import tracemalloc
from typing import Any

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from synergai.errors import InvalidInput, NotSupported
from synergai.oip import inference_pb2 as oip
from synergai.oip import model_config_pb2
from synergai.wire import arrays, oip_rest, oip_tensors
from synergai.wire.oip_rest import (
    MAX_JSON_BYTES,
    OutputForm,
    message_to_json,
    read_request,
    write_response,
)
from synergai.wire.parameters import read_parameters
from synergai.wire.validation import DATATYPES
from tests.inference_messages import build_response

JSON_DATATYPES = sorted(DATATYPES - {"FP16", "BF16"})
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def arrays_of(datatype: str) -> st.SearchStrategy[NDArray[Any]]:
    dtype = arrays.DTYPES[datatype]
    if dtype.hasobject:
        texts = st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)
        return hnp.arrays(object, SHAPES, elements=texts)
    if dtype.kind == "f":
        finite = {"allow_nan": False, "allow_infinity": False}
        return hnp.arrays(dtype, SHAPES, elements=finite)
    return hnp.arrays(dtype, SHAPES)


ANY_JSON_ARRAY = st.sampled_from(JSON_DATATYPES).flatmap(
    lambda datatype: arrays_of(datatype).map(lambda array: (datatype, array))
)


def as_json(array: NDArray[Any], *, nested: bool) -> object:
    if array.dtype.hasobject:
        array = np.vectorize(bytes.decode, otypes=[object])(array) if array.size else array
    return array.tolist() if nested and array.ndim else array.reshape(-1).tolist()


def body(**changes: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]} | changes
    kept = {name: value for name, value in tensor.items() if value is not None}
    return json.dumps({"inputs": [kept]}).encode()


def problem(data: bytes, json_bytes: int | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_request("e", "", data, json_bytes)
    return str(caught.value)


@given(ANY_JSON_ARRAY, st.booleans())
def test_json_tensor_becomes_raw_contents(case: tuple[str, NDArray[Any]], nested: bool) -> None:
    datatype, array = case
    data = as_json(array, nested=nested)
    text = body(datatype=datatype, shape=list(array.shape), data=data)
    request, _ = read_request("e", "1", text)
    assert request.parsed.raw == [arrays.to_raw(array)]


@given(ANY_JSON_ARRAY)
def test_json_output_has_the_elements_of_its_tensor(case: tuple[str, NDArray[Any]]) -> None:
    datatype, array = case
    response = build_response("e", {"y": array}, version="1", request_id="a")
    written = write_response(response.SerializeToString(), OutputForm())
    assert written.json_bytes is None
    assert json.loads(written.body) == {
        "model_name": "e",
        "model_version": "1",
        "id": "a",
        "outputs": [
            {
                "name": "y",
                "datatype": datatype,
                "shape": list(array.shape),
                "data": as_json(array, nested=False),
            }
        ],
    }


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_binary_tensors_are_split_and_joined(contents: list[bytes], data: st.DataObject) -> None:
    inputs = [
        {
            "name": f"x{index}",
            "datatype": "UINT8",
            "shape": [len(content)],
            "parameters": {"binary_data_size": len(content)},
        }
        for index, content in enumerate(contents)
    ]
    header = json.dumps({"inputs": inputs}).encode()
    request, _ = read_request("e", "", header + b"".join(contents), len(header))
    assert request.parsed.raw == contents
    sent = oip.ModelInferRequest.FromString(bytes(request.data))
    assert list(sent.raw_input_contents) == contents
    response = build_response(
        "e", {f"y{n}": np.frombuffer(c, "u1") for n, c in enumerate(contents)}
    )
    binary = [data.draw(st.booleans()) for _ in contents]
    form = OutputForm(False, {f"y{n}": chosen for n, chosen in enumerate(binary)})
    written = write_response(response.SerializeToString(), form)
    expected = b"".join(c for c, chosen in zip(contents, binary, strict=True) if chosen)
    text = written.body if written.json_bytes is None else written.body[: written.json_bytes]
    assert written.body[len(text) :] == expected
    for content, chosen, output in zip(contents, binary, json.loads(text)["outputs"], strict=True):
        assert ("data" in output) is not chosen
        assert output.get("parameters") == ({"binary_data_size": len(content)} if chosen else None)


def test_request_is_the_one_that_grpc_would_have_sent() -> None:
    text = json.dumps(
        {
            "id": "a",
            "parameters": {
                "priority": 1,
                "synergai_tenant": "lab",
                "x": 1.5,
                "y": True,
                "binary_data_output": True,
            },
            "inputs": [
                {
                    "name": "x",
                    "datatype": "INT64",
                    "shape": [1, 2],
                    "data": [[2**63 - 1, -(2**63)]],
                },
                {"name": "y", "datatype": "BYTES", "shape": [1], "data": ["Zürich"], "more": 1},
            ],
            "outputs": [{"name": "z", "parameters": {"classification": 2, "binary_data": False}}],
        }
    )
    request, form = read_request("e", "2", text.encode())
    assert form == OutputForm(True, {"z": False})
    sent = oip.ModelInferRequest.FromString(bytes(request.data))
    assert (sent.model_name, sent.model_version, sent.id) == ("e", "2", "a")
    assert read_parameters(sent.parameters) == {
        "priority": 1,
        "synergai_tenant": "lab",
        "x": 1.5,
        "y": True,
    }
    assert [(t.name, t.datatype, list(t.shape)) for t in sent.inputs] == [
        ("x", "INT64", [1, 2]),
        ("y", "BYTES", [1]),
    ]
    assert read_parameters(sent.outputs[0].parameters) == {"classification": 2}
    assert sent.raw_input_contents[0] == np.array([2**63 - 1, -(2**63)]).tobytes()
    assert sent.raw_input_contents[1] == b"\7\0\0\0" + "Zürich".encode()
    assert not request.parsed.message.raw_input_contents


def test_optional_field_that_is_null_is_as_if_it_was_left_out() -> None:
    nulls = {"parameters": {"priority": None, "binary_data_size": None}}
    in_json = {"name": "x", "datatype": "UINT8", "shape": [1], "data": [1], **nulls}
    in_binary = in_json | {"data": None, "parameters": {"binary_data_size": 1, "x": None}}
    output = {"name": "y", "parameters": {"binary_data": None}}
    fields = {
        "id": None,
        "inputs": [in_json, in_binary],
        "outputs": [output, {"name": "z", "parameters": None}],
        "parameters": {"binary_data_output": None, "sequence_id": None, "timeout": None},
    }
    text = json.dumps(fields).encode()
    request, form = read_request("e", "", text + b"\2", len(text))
    assert form == OutputForm()
    assert request.parsed.raw == [b"\1", b"\2"]
    sent = oip.ModelInferRequest.FromString(bytes(request.data))
    assert sent.id == ""
    assert not sent.parameters
    assert not any(each.parameters for each in sent.inputs)
    assert not any(each.parameters for each in sent.outputs)
    fields |= {"outputs": None, "parameters": None}
    without, form = read_request(
        "e", "", json.dumps(fields).encode() + b"\2", len(json.dumps(fields))
    )
    assert form == OutputForm()
    assert not without.parsed.message.outputs


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": [1, 2]}, "needs 3 elements for its shape, not 2"),
        ({"data": []}, "needs 3 elements for its shape, not 0"),
        ({"data": [1, 2, "3"]}, "Expected `float`, got `str`"),
        ({"data": [1, 2, None]}, "Expected `float`, got `null`"),
        ({"data": [1, [2, 3]]}, "neither flat nor nested like its shape"),
        ({"data": [[1, 2], [3]], "shape": [3, 1]}, "neither flat nor nested like its shape"),
        ({"data": [[1, 2, 3], [4]], "shape": [2, 2]}, "neither flat nor nested like its shape"),
        ({"data": [[1], [], [2]], "shape": [3, 1]}, "malformed"),
        ({"data": {"a": 1, "b": 2, "c": 3}}, "its data is not a list"),
        ({"data": "1,2,3"}, "its data is not a list"),
        ({"data": None}, "neither data nor binary_data_size"),
        ({"shape": [-3]}, "negative dimension"),
        ({"shape": [2**62, 2**62]}, "the limit in JSON"),
        ({"shape": [2**64]}, "<= 9223372036854775807"),
        ({"shape": [1] * 65}, "length <= 64"),
        ({"shape": 3}, "Expected `array`, got `int`"),
        ({"shape": [1.5]}, "Expected `int`, got `float`"),
        ({"datatype": "FP16"}, "has no JSON form; send it as binary data"),
        ({"datatype": "BF16"}, "has no JSON form; send it as binary data"),
        ({"datatype": "FLOAT"}, "unknown datatype 'FLOAT'; the datatypes are BF16, BOOL, BYTES,"),
        ({"datatype": "INT8", "data": [1, 2, 128]}, "out of range for INT8"),
        ({"datatype": "UINT64", "data": [1, 2, -1]}, "out of range for UINT64"),
        ({"datatype": "INT64", "data": [1, 2, 2**63]}, "out of range for INT64"),
        ({"datatype": "INT64", "data": [1, 2, 10**4000]}, "out of range"),
        ({"datatype": "INT32", "data": [1, 2, 1.5]}, "Expected `int`, got `float`"),
        ({"datatype": "BOOL", "data": [True, False, 1]}, "Expected `bool`, got `int`"),
        ({"datatype": "BYTES", "data": ["a", "b", 1]}, "Expected `str`, got `int`"),
        ({"datatype": "BYTES", "data": ["a", ",[", '"],']}, ""),
        ({"data": [1, 2, 1e300]}, "out of range for FP32"),
        ({"name": 1}, "Expected `str`, got `int`"),
        ({"name": None}, "missing required field `name`"),
        ({"parameters": {"binary_data_size": 4}}, "both data and binary_data_size"),
        ({"parameters": {"binary_data_size": 4}, "data": None}, "has only 0 more"),
        ({"parameters": {"binary_data_size": -4}, "data": None}, "an integer of 0 or more"),
        ({"parameters": {"binary_data_size": True}, "data": None}, "an integer of 0 or more"),
        ({"parameters": {"binary_data_size": "4"}, "data": None}, "an integer of 0 or more"),
        ({"parameters": {"a": [1]}}, "Expected `bool | int | float | str | null`, got `array`"),
        ({"parameters": {"a": 2**64}}, "does not fit into 64 bits"),
    ],
)
def test_invalid_input_is_explained(change: dict[str, object], text: str) -> None:
    data = body(**change)
    if text:
        assert text in problem(data)
    else:
        read_request("e", "", data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"inputs": 1}',
        b'{"inputs": [NaN]}',
        b'{"inputs": []} x',
        b'{"inputs": [], "id": 1}',
        b'{"inputs": [], "parameters": {"binary_data_output": 1}}',
        b'{"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": "no"}}]}',
        b'{"inputs": [], "id": "\xff"}',
        b'{"inputs": [], "id": "\\ud800"}',
        b'{"inputs": ' + b"[" * 100_000,
        b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        body().replace(b"[1, 2, 3]", b"[1, 2, NaN]"),
        body().replace(b"[1, 2, 3]", b"[1, 2, Infinity]"),
        body().replace(b"[1, 2, 3]", b"[1, 2, 1e999]"),
        body().replace(b"[1, 2, 3]", b"[" * 50_000 + b"]" * 50_000),
        body(datatype="BYTES", data=["a", "b", "c"]).replace(b'"c"', b'"\xff"'),
    ],
)
def test_malformed_body_is_invalid_input(data: bytes) -> None:
    assert problem(data)


def test_json_part_longer_than_the_body_is_invalid_input() -> None:
    assert "should have 1,000 bytes" in problem(body(), 1000)


def test_json_part_shorter_than_the_json_is_invalid_input() -> None:
    assert problem(body(), 10)
    assert problem(body(), 0)


def test_bytes_that_belong_to_no_input_are_invalid_input() -> None:
    data = body()
    assert "3 bytes that belong to no input" in problem(data + b"abc", len(data))


def test_large_json_is_to_be_sent_as_binary_data() -> None:
    assert "as binary data" in problem(b" " * (MAX_JSON_BYTES + 1))
    too_many = oip_tensors.MAX_JSON_ELEMENTS + 1
    data = b"[" + b"1," * (too_many - 1) + b"1]"
    text = body(shape=[too_many]).replace(b"[1, 2, 3]", data)
    assert "as binary data" in problem(text)


def test_limit_of_elements_in_json_holds_for_all_inputs_together() -> None:
    half = oip_tensors.MAX_JSON_ELEMENTS // 2
    data = [0] * half
    inputs = [
        {"name": name, "datatype": "UINT8", "shape": [size], "data": data[:size]}
        for name, size in (("x", half), ("y", half), ("z", 1))
    ]
    assert "as binary data" in problem(json.dumps({"inputs": inputs}).encode())
    read_request("e", "", json.dumps({"inputs": inputs[:2]}).encode())


def test_fewer_strings_than_numbers_are_read_from_json() -> None:
    many = oip_tensors.MAX_JSON_STRINGS + 1
    assert "65,536 strings" in problem(body(shape=[many], datatype="BYTES", data=["a"] * many))
    most = oip_tensors.json_from_raw("y", "BYTES", [many - 1], bytes(4 * (many - 1)))
    assert most == [""] * (many - 1)
    with pytest.raises(InvalidInput, match="more than 65,536 strings"):
        oip_tensors.json_from_raw("y", "BYTES", [many], bytes(4 * many))


def test_limit_of_parameters_holds_for_the_request_and_its_tensors_together() -> None:
    parameters = {f"parameter_{number}": number for number in range(300)}
    inputs = [
        {
            "name": f"x{number}",
            "shape": [1],
            "datatype": "INT8",
            "data": [1],
            "parameters": parameters,
        }
        for number in range(50)
    ]
    assert "262,144" in problem(json.dumps({"inputs": inputs}).encode())
    read_request("e", "", json.dumps({"inputs": inputs[:10]}).encode())


def test_shape_does_not_determine_the_memory_that_a_check_takes() -> None:
    size = 1 << 19
    data = b"[[" + b"1," * (size - 1) + b"1]]"
    text = body(shape=[size, *[1] * 63], datatype="UINT8").replace(b"[1, 2, 3]", data)
    tracemalloc.start()
    try:
        assert "neither flat nor nested" in problem(text)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_strings_are_read_however_many_lists_are_around_them() -> None:
    strings = [f'{number} [\\",]' for number in range(9)]
    nested: Any = strings
    for _ in range(63):
        nested = [[each] for each in nested]
    text = body(datatype="BYTES", shape=[9, *[1] * 63], data=nested)
    request, _ = read_request("e", "", text)
    assert request.parsed.raw == [arrays.to_raw(np.array(strings, object))]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_output_that_json_cannot_represent_is_to_be_requested_as_binary(value: float) -> None:
    response = build_response("e", {"y": np.array([1, value], np.float32)}).SerializeToString()
    with pytest.raises(InvalidInput, match="request binary_data"):
        write_response(response, OutputForm())
    assert write_response(response, OutputForm(default=True)).json_bytes is not None


def test_outputs_together_are_limited_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oip_rest, "MAX_JSON_ELEMENTS", 10)
    outputs = {name: np.zeros(5, np.float32) for name in ("a", "b")}
    write_response(build_response("e", outputs).SerializeToString(), OutputForm())
    large = build_response("e", outputs | {"c": np.zeros(1)}).SerializeToString()
    with pytest.raises(InvalidInput, match="more than 10 elements in JSON, the limit: request bin"):
        write_response(large, OutputForm())
    assert write_response(large, OutputForm(default=True)).json_bytes is not None


@pytest.mark.parametrize(
    "array", [np.zeros(1, np.float16), np.array([b"\xff"], object)], ids=["FP16", "BYTES"]
)
def test_output_without_json_form_is_to_be_requested_as_binary(array: NDArray[Any]) -> None:
    response = build_response("e", {"y": array}).SerializeToString()
    with pytest.raises(InvalidInput, match=r"request (it as binary data|binary_data)"):
        write_response(response, OutputForm())
    assert write_response(response, OutputForm(default=True)).json_bytes is not None


def test_response_without_raw_contents_is_refused() -> None:
    response = build_response("e", {"y": np.zeros(1)})
    del response.raw_output_contents[:]
    with pytest.raises(DecodeError):
        write_response(response.SerializeToString(), OutputForm())


@given(st.binary(max_size=60), st.none() | st.integers(0, 80))
def test_arbitrary_bytes_never_raise_another_error(data: bytes, json_bytes: int | None) -> None:
    try:
        read_request("e", "", data, json_bytes)
    except (InvalidInput, NotSupported) as error:
        assert str(error)  # noqa: PT017 - other errors propagate


@pytest.mark.parametrize("seed", range(4))
def test_damaged_request_never_raises_another_error(seed: int) -> None:
    rng = random.Random(seed)
    good = body(datatype="BYTES", data=["a", "b\\u1234", "c"], parameters={"a": 1})
    for _ in range(500):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(3):
                case 0:
                    data[at : at + 1] = rng.choice([b"[", b"]", b'"', b",", b"\xff", b"9", b"-"])
                case 1:
                    data[at:at] = rng.randbytes(rng.randint(1, 8))
                case _:
                    del data[at : at + rng.randint(1, 30)]
        try:
            read_request("e", "", bytes(data), rng.choice([None, None, len(data), 10, 1000]))
        except (InvalidInput, NotSupported) as error:
            assert str(error)  # noqa: PT017 - other errors propagate


def test_message_as_json_has_numbers_names_and_defaults() -> None:
    config = model_config_pb2.ModelConfig(
        name="e",
        input=[
            model_config_pb2.ModelInput(
                name="x", data_type=model_config_pb2.TYPE_FP32, dims=[-1, 2**40]
            )
        ],
        parameters={"a": model_config_pb2.ModelParameter(string_value="b")},
    )
    found = message_to_json(config)
    assert found["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2**40]}]
    assert found["parameters"] == {"a": {"string_value": "b"}}
    assert found["output"] == []
    assert found["max_batch_size"] == 0
    assert "dynamic_batching" not in found
    msgspec.json.encode(found)
