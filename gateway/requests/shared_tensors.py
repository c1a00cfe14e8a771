"""Requests whose inputs or outputs are in regions of system shared memory.

Inputs are copied from their regions before the request is admitted, so that everything behind sees
an ordinary request. Outputs are copied to their regions from its response.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.requests.parameters import int_parameter
from gateway.requests.shared_memory import Owner, Span
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.protocol.request_codec import (
    REGION,
    RequestHeader,
    parse_response,
    serialise_request,
    serialise_response,
)
from synergai.protocol.rpc import RawRequest

if TYPE_CHECKING:
    from gateway.requests.inference import PendingRequest
    from gateway.requests.shared_memory import SharedMemoryRegions
    from synergai.protocol.request_codec import Buffer

_OFFSET: Final = "shared_memory_offset"
_BYTE_SIZE: Final = "shared_memory_byte_size"


class SharedTensors:
    """The tensors of a request in shared memory, and the request without references to them."""

    def __init__(
        self, regions: SharedMemoryRegions, owner: Owner, raw: RawRequest[RequestHeader]
    ) -> None:
        self._regions = regions
        self._owner = owner
        message = ModelInferRequest()
        message.CopyFrom(raw.parsed.message)  # which must not be modified
        inputs = [_take_span(tensor) for tensor in message.inputs]
        outputs = {output.name: _take_span(output) for output in message.outputs}
        if len(raw.parsed.raw) != inputs.count(None):
            raise InvalidInput(
                f"raw_input_contents has {len(raw.parsed.raw)} entries for "
                f"{inputs.count(None)} inputs that are not in shared memory"
            )
        size = len(raw.data) + sum(span.byte_size for span in inputs if span)
        if size > regions.max_bytes:
            raise InvalidInput(
                f"the request and its inputs in shared memory have {size:,} bytes; the limit is "
                f"{regions.max_bytes:,}"
            )
        self._outputs = {name: span for name, span in outputs.items() if span}
        for span in self._outputs.values():
            regions.check(owner, span)
        sent = iter(raw.parsed.raw)
        contents = [regions.read(owner, span) if span else next(sent) for span in inputs]
        data = serialise_request(message, contents)
        self.request = RawRequest(data, RequestHeader(message, contents))

    def take_outputs(self, response: Buffer) -> bytes:
        """Write outputs to their regions; return the response with references instead."""
        message, raw = parse_response(response)
        contents = list(raw)
        for index, output in enumerate(message.outputs):
            if (span := self._outputs.get(output.name)) is not None:
                self._regions.write(self._owner, span, contents[index])
                output.parameters[REGION].string_param = span.region
                output.parameters[_BYTE_SIZE].int64_param = len(contents[index])
                output.parameters[_OFFSET].int64_param = span.offset
                contents[index] = b""
        return serialise_response(message, contents)


class SharedMemoryRequest:
    """An accepted request whose outputs are copied to shared memory."""

    def __init__(self, request: PendingRequest, tensors: SharedTensors) -> None:
        self._request = request
        self._tensors = tensors
        self.result: asyncio.Future[Buffer] = asyncio.create_task(self._run())

    def abandon(self) -> None:
        """Cancel the request, because its client is gone or has cancelled it."""
        self._request.abandon()
        self.result.cancel()

    async def _run(self) -> bytes:
        return self._tensors.take_outputs(await self._request.result)


def _take_span(
    tensor: ModelInferRequest.InferInputTensor | ModelInferRequest.InferRequestedOutputTensor,
) -> Span | None:
    """Remove the reference of a tensor to a region; return it if there is one."""
    parameters = tensor.parameters
    if REGION not in parameters:
        return None
    if _BYTE_SIZE not in parameters:
        raise InvalidInput(f"tensor {tensor.name!r} has {REGION} without {_BYTE_SIZE}")
    size = int_parameter(parameters[_BYTE_SIZE], _BYTE_SIZE)
    offset = int_parameter(parameters[_OFFSET], _OFFSET) if _OFFSET in parameters else 0
    span = Span(parameters[REGION].string_param, offset, size)
    for name in (REGION, _BYTE_SIZE, _OFFSET):
        parameters.pop(name, None)
    return span
