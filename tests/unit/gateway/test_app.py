"""Admission and settings of a gateway."""

import pytest

from gateway.entry.admission import Admission
from synergai.errors import Overloaded
from synergai.runtime.clock import Clock

# --- admission --------------------------------------------------------------------------------


async def test_admission_limits_requests_and_bytes_but_admits_one_large_request() -> None:
    admission = Admission(2, 10, Clock())
    admission.acquire(100)
    with pytest.raises(Overloaded, match="bytes"):
        admission.acquire(1)
    admission.release(100)
    admission.acquire(5)
    admission.acquire(5)
    with pytest.raises(Overloaded, match="requests"):
        admission.acquire(0)


# --- settings ---------------------------------------------------------------------------------
