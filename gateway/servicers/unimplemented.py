"""Calls that a port does not serve: said in words that help, instead of "Method not found!"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from synergai.errors import NotSupported
from synergai.protocol import rpc

if TYPE_CHECKING:
    from collections.abc import Mapping

_INFERENCE: Final = "/inference.GRPCInferenceService/"

NOT_OFFERED: Final[Mapping[str, str]] = {
    **{
        f"{_INFERENCE}{kind}SharedMemory{call}": "shared memory is not offered: send tensors in "
        "raw_input_contents"
        for kind in ("System", "Cuda")
        for call in ("Status", "Register", "Unregister")
    },
    f"{_INFERENCE}TraceSetting": "tracing is not offered: ask for 'synergai_timings' in a "
    "request's parameters, or see /metrics",
    f"{_INFERENCE}LogSettings": "logging is set when the gateway starts: --log-level",
}
"""Parts of Triton's protocol that are left out, and what there is instead."""


class Elsewhere(grpc.GenericRpcHandler):
    """Takes every call that no handler before it did, and refuses it with UNIMPLEMENTED.

    Args:
        texts: what to say, by the method's full path, or by the path up to its last slash, which
            stands for a whole service.
        otherwise: what to say of all others.
    """

    def __init__(self, texts: Mapping[str, str], otherwise: str) -> None:
        self._texts = texts
        self._otherwise = otherwise

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that refuses the call; as a stream, which is right for any kind of call."""
        method = handler_call_details.method
        service = method[: method.rfind("/") + 1]
        text = self._texts.get(method) or self._texts.get(service) or self._otherwise

        async def refuse(_requests: object, context: rpc.Context) -> NoReturn:
            await rpc.abort(context, NotSupported(text))

        return grpc.stream_stream_rpc_method_handler(refuse)
