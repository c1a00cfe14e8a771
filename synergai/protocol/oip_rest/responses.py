"""Conversion of the protocol's inference responses to REST form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from synergai.errors import InvalidInput
from synergai.protocol.oip_rest.tensors import MAX_JSON_ELEMENTS, json_from_raw
from synergai.protocol.parameters import read_parameters
from synergai.protocol.request_codec import parse_response

if TYPE_CHECKING:
    from synergai.protocol.oip_rest.requests import OutputForm
    from synergai.protocol.request_codec import Buffer


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
