import sys

import pytest

from gateway.monitoring.tracing import Tracing
from synergai.errors import InvalidInput
from synergai.runtime.clock import Clock
from synergai.wire.parameters import CallIds, ids_from_metadata

CONTEXT = f"00-{'1' * 32}-{'2' * 16}"


def test_missing_package_is_named_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidInput, match=r"--traces needs opentelemetry.*tracing"):
        Tracing("http://127.0.0.1:1", 0.0, Clock())


@pytest.mark.parametrize(
    ("traceparent", "share", "traced"),
    [
        (f"{CONTEXT}-01", 0.0, True),
        (f"{CONTEXT}-03", 0.0, True),
        (f"{CONTEXT}-00", 1.0, False),
        ("", 0.0, False),
        ("", 1.0, True),
        ("00-1-2-01", 0.0, False),
        (f"{CONTEXT}-01-more", 0.0, False),
    ],
)
async def test_client_decides_and_a_share_of_the_others_is_traced(
    traceparent: str, share: float, traced: bool
) -> None:
    tracing = Tracing("http://127.0.0.1:1", share, Clock())
    assert (tracing.begin_trace(traceparent) is not None) == traced
    await tracing.close()


def test_ids_of_a_call_are_read_from_its_metadata() -> None:
    metadata = (("a", "b"), ("traceparent", "c"), ("request-id", "mine"), ("x-bin", b"\0"))
    assert ids_from_metadata(metadata) == CallIds("mine", "c")
    assert ids_from_metadata((("request-id", "not valid"),)) == CallIds()
