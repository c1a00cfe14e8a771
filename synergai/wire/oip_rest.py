"""Conversion between the REST form of inference calls and the protocol's messages.

A body is a JSON object. With the binary tensor data extension, it is followed by the raw contents
of tensors, and a header of the call has the length of the JSON part. An optional field that is null
stands for one that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.wire.oip_tensors import (
    MAX_JSON_ELEMENTS,
    MAX_JSON_STRINGS,
    element_count,
    json_from_raw,
    raw_from_json,
)
from synergai.wire.parameters import ParameterValue, read_parameters, set_parameter
from synergai.wire.request_codec import RequestHeader, parse_response, serialise_request
from synergai.wire.rpc import RawRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.message import Message

    from synergai.wire.request_codec import Buffer

T = TypeVar("T")

MAX_JSON_BYTES: Final = 16 << 20
"""Limit on the JSON part of a body, which is parsed on the event loop."""
MAX_TENSORS: Final = 4096
"""Limit on the inputs and on the requested outputs of a request."""
MAX_PARAMETER_BYTES: Final = 256 << 10
"""Limit on the parameters of a request and of its tensors in all, in JSON; reading one takes as
long as a hundred bytes of other JSON."""
MAX_DIMENSIONS: Final = 64
"""Limit on a tensor's dimensions; that of NumPy."""
_BINARY_SIZE: Final = "binary_data_size"
_BINARY_OUTPUT: Final = "binary_data"
_BINARY_OUTPUTS: Final = "binary_data_output"
_NULL: Final = Raw(b"null")

_Parameters: TypeAlias = dict[str, ParameterValue]
_Dimension = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Input(Struct):
    name: str
    shape: Annotated[list[_Dimension], Meta(max_length=MAX_DIMENSIONS)]
    datatype: str
    parameters: Raw = _NULL
    data: Raw = _NULL


class _Output(Struct):
    name: str
    parameters: Raw = _NULL


class _Request(Struct):
    inputs: Annotated[list[_Input], Meta(max_length=MAX_TENSORS)]
    id: str | None = None
    parameters: Raw = _NULL
    outputs: Annotated[list[_Output], Meta(max_length=MAX_TENSORS)] | None = None


class OutputForm(Struct, frozen=True):
    """Whether a client wants outputs as binary data or JSON: those it names, and the others."""

    default: bool = False
    by_name: Mapping[str, bool] = {}

    def is_binary(self, output: str) -> bool:
        return self.by_name.get(output, self.default)


_request_decoder: Final = msgspec.json.Decoder(_Request)
_parameters_decoder: Final = msgspec.json.Decoder(dict[str, ParameterValue | None] | None)


def read_request(
    engine: str, version: str, body: Buffer, json_bytes: int | None = None
) -> tuple[RawRequest[RequestHeader], OutputForm]:
    """Convert the body of an inference request; `json_bytes` is the length of its JSON part.

    Returns it as if it had been received by gRPC with raw contents, and the form of the response.
    It is not checked against the engine.
    """
    view = memoryview(body)
    if json_bytes is None:
        json_bytes = len(view)
    elif json_bytes > len(view):
        raise InvalidInput(
            f"the JSON part should have {json_bytes:,} bytes, but the body has {len(view):,}"
        )
    if json_bytes > MAX_JSON_BYTES:
        raise InvalidInput(
            f"the JSON part has {json_bytes:,} bytes; the limit is {MAX_JSON_BYTES:,}: send "
            "tensors as binary data"
        )
    request = decode_json(_request_decoder, view[:json_bytes], "an inference request")
    named = (request, *request.inputs, *(request.outputs or ()))
    size = sum(len(memoryview(each.parameters)) for each in named)
    if size > MAX_PARAMETER_BYTES:
        raise InvalidInput(
            f"the parameters have {size:,} bytes in all; the limit is {MAX_PARAMETER_BYTES:,}"
        )
    _check_elements(request.inputs)
    message = ModelInferRequest(model_name=engine, model_version=version, id=request.id or "")
    contents, rest = [], view[json_bytes:]
    for each in request.inputs:
        parameters = _read_parameters(each)
        content, rest = _take_content(each, parameters, rest)
        contents.append(content)
        tensor = message.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        _set_parameters(tensor.parameters, parameters, _BINARY_SIZE)
    if rest:
        raise InvalidInput(f"the body has {len(rest):,} bytes that belong to no input")
    parameters = _read_parameters(request)
    default = _bool(parameters, _BINARY_OUTPUTS, "the request")
    _set_parameters(message.parameters, parameters, _BINARY_OUTPUTS)
    by_name = {}
    for wanted in request.outputs or ():
        parameters = _read_parameters(wanted)
        if _BINARY_OUTPUT in parameters:
            by_name[wanted.name] = _bool(parameters, _BINARY_OUTPUT, f"output {wanted.name!r}")
        output = message.outputs.add(name=wanted.name)
        _set_parameters(output.parameters, parameters, _BINARY_OUTPUT)
    data = serialise_request(message, contents)
    form = OutputForm(default, by_name)
    return RawRequest(data, RequestHeader(message, contents)), form


def decode_json(decoder: msgspec.json.Decoder[T], data: Buffer, expected: str) -> T:
    """Decode JSON from a client; `expected` says in errors what it should be."""
    try:
        return decoder.decode(data)
    except UnicodeDecodeError:
        raise InvalidInput(f"the body is not {expected}: it is not valid UTF-8") from None
    except RecursionError:
        raise InvalidInput(f"the body is not {expected}: it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not {expected}: {error}") from None


def _check_elements(inputs: Sequence[_Input]) -> None:
    numbers = strings = 0
    for each in inputs:
        if _has_data(each):
            count = element_count(each.name, each.shape)
            if each.datatype == "BYTES":
                strings += count
            else:
                numbers += count
    if numbers > MAX_JSON_ELEMENTS or strings > MAX_JSON_STRINGS:
        raise InvalidInput(
            f"the inputs have {numbers + strings:,} elements in JSON; the limit is "
            f"{MAX_JSON_ELEMENTS:,}, and {MAX_JSON_STRINGS:,} strings: send them as binary data"
        )


def _read_parameters(named: _Request | _Input | _Output) -> _Parameters:
    data = memoryview(named.parameters)
    values = decode_json(_parameters_decoder, data, "an inference request") or {}
    return {name: value for name, value in values.items() if value is not None}


def _has_data(tensor: _Input) -> bool:
    return bytes(memoryview(tensor.data)[:5]) != b"null"


def _take_content(
    tensor: _Input, parameters: _Parameters, rest: memoryview
) -> tuple[Buffer, memoryview]:
    """Return the raw contents of an input, and the binary data of those that follow."""
    name = tensor.name
    has_data = _has_data(tensor)
    if _BINARY_SIZE not in parameters:
        if not has_data:
            raise InvalidInput(f"input {name!r} has neither data nor {_BINARY_SIZE}")
        return raw_from_json(name, tensor.datatype, tensor.shape, memoryview(tensor.data)), rest
    size = parameters[_BINARY_SIZE]
    if has_data:
        raise InvalidInput(f"input {name!r} has both data and {_BINARY_SIZE}; send one of them")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidInput(f"input {name!r}: {_BINARY_SIZE} must be an integer of 0 or more")
    if size > len(rest):
        raise InvalidInput(
            f"input {name!r} should have {size:,} bytes of binary data, but the body has only "
            f"{len(rest):,} more"
        )
    return rest[:size], rest[size:]


def _set_parameters(
    target: Any,  # a map field, whose type the stubs keep private
    parameters: _Parameters,
    consumed: str,
) -> None:
    for name, value in parameters.items():
        if name != consumed:
            set_parameter(target[name], value)


def _bool(parameters: Mapping[str, object], name: str, where: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: the parameter {name!r} must be true or false")
    return value


class RestResponse(NamedTuple):
    """Body of an inference response, and the length of its JSON part if it has another one."""

    body: bytes
    json_bytes: int | None


def write_response(data: Buffer, form: OutputForm) -> RestResponse:
    """Convert the serialised ``ModelInferResponse`` in `data`, which must have raw contents."""
    message, raw = parse_response(data)
    outputs: list[dict[str, Any]] = []
    binary: list[Buffer] = []
    elements = 0
    for tensor, content in zip(message.outputs, raw, strict=True):
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        parameters = read_parameters(tensor.parameters) if tensor.parameters else {}
        if form.is_binary(tensor.name):
            output["parameters"] = parameters | {"binary_data_size": len(content)}
            binary.append(content)
        else:
            if parameters:
                output["parameters"] = parameters
            values = json_from_raw(tensor.name, tensor.datatype, tensor.shape, content)
            elements += len(values)
            if elements > MAX_JSON_ELEMENTS:
                raise InvalidInput(
                    f"the outputs have more than {MAX_JSON_ELEMENTS:,} elements in JSON, the "
                    "limit: request binary_data"
                )
            output["data"] = values
        outputs.append(output)
    response: dict[str, Any] = {"model_name": message.model_name}
    if message.model_version:
        response["model_version"] = message.model_version
    if message.id:
        response["id"] = message.id
    if message.parameters:
        response["parameters"] = read_parameters(message.parameters)
    response["outputs"] = outputs
    text = msgspec.json.encode(response)
    if not binary:
        return RestResponse(text, None)
    return RestResponse(b"".join((text, *binary)), len(text))


def message_to_json(message: Message) -> dict[str, Any]:
    """Return the fields of `message` by their names in the protocol, those without value included.

    Unlike ``google.protobuf.json_format``, 64-bit integers are numbers; unset messages are omitted.
    """
    return {
        field.name: _field(message, field)
        for field in message.DESCRIPTOR.fields
        if field.message_type is None or field.is_repeated or message.HasField(field.name)
    }


# The stubs lack the type of the descriptors that the C implementation returns.
def _field(message: Message, field: Any) -> object:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _value(value, field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {str(key): _value(each, of_value) for key, each in value.items()}
    return [_value(each, field) for each in value]


def _value(value: Any, field: Any) -> object:
    if field.message_type is not None:
        return message_to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
