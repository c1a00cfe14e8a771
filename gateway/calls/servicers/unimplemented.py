"""Helpful errors for calls that a port does not serve, instead of "Method not found!"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from synergai.errors import NotSupported
from synergai.wire import rpc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.wire.server_call import ServerCall

_INFERENCE: Final = "/inference.GRPCInferenceService/"

UNSUPPORTED_METHODS: Final[Mapping[str, str]] = {
    **{
        f"{_INFERENCE}{kind}SharedMemory{call}": "shared memory is not supported: send tensors in "
        "raw_input_contents"
        for kind in ("System", "Cuda")
        for call in ("Status", "Register", "Unregister")
    },
    f"{_INFERENCE}TraceSetting": "tracing is not supported: ask a gateway, with the request "
    "parameter 'synergai_timings' or at /metrics",
    f"{_INFERENCE}LogSettings": "log settings cannot change at run time: start the server with "
    "--log-level",
}
"""Unsupported calls of Triton's protocol, with the alternative for each."""


class UnimplementedHandler(grpc.GenericRpcHandler):
    """Rejects every call without an earlier handler as UNIMPLEMENTED.

    Args:
        texts: error messages by full method path, or by path up to the last slash for a service.
    """

    def __init__(self, texts: Mapping[str, str], default: str) -> None:
        self._texts = texts
        self._default = default

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return a stream handler, which suits any kind of call, that rejects the call."""
        method = handler_call_details.method
        service = method[: method.rfind("/") + 1]
        text = self._texts.get(method) or self._texts.get(service) or self._default

        async def reject(_requests: object, context: ServerCall) -> NoReturn:
            await rpc.abort(context, NotSupported(text))

        return grpc.stream_stream_rpc_method_handler(reject)
