"""Bearer tokens of clients: where they may be sent, and how."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from synergai.errors import InvalidInput
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc.aio

    Metadata: TypeAlias = tuple[tuple[str, str], ...]

_TOKEN: Final = re.compile("[!-~]{1,8192}")
_LOCAL: Final = ("unix:", "unix-abstract:")


def token_metadata(token: str, target: str, *, encrypted: bool, insecure: bool) -> Metadata:
    """Return the metadata that presents a token, if it cannot be read on its way.

    Without TLS, it goes to other machines only if that is `insecure` on purpose. Several targets
    are separated by commas.
    """
    if not token:
        return ()
    if _TOKEN.fullmatch(token) is None:
        raise InvalidInput("the token has spaces or other characters that no token has")
    remote = [each for each in target.split(",") if not _is_local(each)]
    if remote and not (encrypted or insecure):
        raise InvalidInput(
            f"the token would be sent to {remote[0]} without encryption: use TLS "
            "(SYNERGAI_TLS_CA, tls_ca=), or accept the risk with SYNERGAI_INSECURE=1 "
            "(insecure=True)"
        )
    return (("authorization", f"Bearer {token}"),)


def _is_local(target: str) -> bool:
    """Return whether a target of gRPC is on this machine."""
    if target.startswith(_LOCAL):
        return True
    address = target.rpartition("/")[2]
    return is_loopback(address.rpartition(":")[0] or address)


class AuthorizedChannel:
    """A channel whose calls present credentials; has what stubs need.

    Not an interceptor of gRPC, which would add a task to each call.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        self._metadata = metadata
        self.unary_unary = partial(self._authorize, channel.unary_unary)
        self.unary_stream = partial(self._authorize, channel.unary_stream)
        self.stream_unary = partial(self._authorize, channel.stream_unary)
        self.stream_stream = partial(self._authorize, channel.stream_stream)

    def _authorize(
        self, make: Callable[..., Any], *args: Any, **options: Any
    ) -> Callable[..., Any]:
        """Return a method of the channel that presents the credentials."""
        method = make(*args, **options)

        def call(*args: Any, metadata: Metadata = (), **options: Any) -> Any:
            return method(*args, metadata=(*metadata, *self._metadata), **options)

        return call


def authorized(channel: grpc.aio.Channel, metadata: Metadata) -> grpc.aio.Channel:
    """Return a channel for stubs whose calls have `metadata`; the channel itself if it is empty."""
    if not metadata:
        return channel
    return cast("grpc.aio.Channel", AuthorizedChannel(channel, metadata))
