from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

SCRIPT = Path(__file__).with_name("soak.py")


@pytest.fixture(name="soak")
def load_soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak", module)  # needed by dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("megabytes", "grows"),
    [
        pytest.param(lambda _: 70.0, False, id="flat"),
        pytest.param(lambda i: 70.0 + 30.0 * (i > 50), False, id="one step"),
        pytest.param(lambda i: 70.0 + 0.2 * min(i, 20), False, id="only during warm-up"),
        pytest.param(lambda i: 70.0 + 0.16 * i, True, id="sixteen bytes per request"),
    ],
)
def test_only_steady_growth_is_an_error(
    soak: ModuleType, megabytes: Callable[[int], float], *, grows: bool
) -> None:
    samples = [soak.Sample(i * 10_000, {"gateway": int(megabytes(i) * 1e6)}) for i in range(1, 101)]
    found = soak.find_errors({"gateway": 70_000_000, "agent": 50_000_000}, samples)
    assert bool(found) is grows, found


def test_memory_does_not_grow_over_a_million_requests() -> None:
    command = [sys.executable, str(SCRIPT), "--requests", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
