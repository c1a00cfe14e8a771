"""Calls keep the server's status when a write fails."""

from types import SimpleNamespace
from typing import Any

from synergai.wire.writes import keep_status


class CythonCall:
    """The part of grpcio's call that matters here."""

    def __init__(self) -> None:
        self.status = "none"

    def set_internal_error(self, text: str) -> None:
        self.status = f"INTERNAL {text}"

    def send_serialized_message(self) -> str:
        return "sent"

    def receive_serialized_message(self) -> str:
        return "received"

    def done(self) -> bool:
        return self.status != "none"


def test_failed_write_does_not_replace_the_status() -> None:
    inner = CythonCall()
    call: Any = keep_status(SimpleNamespace(_cython_call=inner))  # type: ignore[type-var]  # a fake
    call._cython_call.set_internal_error("a write failed")
    assert inner.status == "none"
    assert not call._cython_call.done()
    assert call._cython_call.send_serialized_message() == "sent"
    assert call._cython_call.receive_serialized_message() == "received"


def test_second_of_two_writes_at_once_fails_the_call() -> None:
    inner = CythonCall()
    call: Any = keep_status(SimpleNamespace(_cython_call=inner))  # type: ignore[type-var]  # a fake
    call._cython_call.set_internal_error("Failed grpc_call_start_batch: 8 with ...")
    assert inner.status.startswith("INTERNAL")
