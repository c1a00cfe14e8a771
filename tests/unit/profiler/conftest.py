import pytest

from profiler.cutting import process


@pytest.fixture
def cuts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut models in this process, which is faster than a child process for each."""
    monkeypatch.setattr(process, "_run_child", process._cut)
