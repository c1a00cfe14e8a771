import pytest

from synergai.errors import OutOfMemory
from worker_agent.backends import runtime_failure


@pytest.mark.parametrize(
    "text",
    [
        "Failed to allocate memory for requested buffer of size 1073741824",
        "BFCArena::AllocateRawInternal(size_t) Available memory of 0 is smaller than requested",
        "CUDA failure 2: out of memory ; GPU=0",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "std::bad_alloc",
        "OOM when allocating tensor with shape[64,3,224,224]",
    ],
)
def test_lack_of_memory_is_recognised_by_what_runtimes_say(text: str) -> None:
    assert type(runtime_failure("it failed", RuntimeError(text))) is OutOfMemory
