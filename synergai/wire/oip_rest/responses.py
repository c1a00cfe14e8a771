"""Conversion of the protocol's responses to REST form, as Triton's clients read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from synergai.errors import InvalidInput
from synergai.wire.oip_rest.tensors import MAX_JSON_ELEMENTS, json_from_raw
from synergai.wire.parameters import read_parameters
from synergai.wire.request_codec import parse_response

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from synergai.wire.oip_rest.requests import OutputForm
    from synergai.wire.request_codec import Buffer


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
            values = json_from_raw(tensor.name, tensor.datatype, content)
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
