"""Sessions of ONNX Runtime with execution providers that this machine lacks.

The runtime is a fake with the behaviour of the real one, as seen with version 1.24: what cannot be
used is left out of the session's providers, and some failures are raised instead.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from synergai.errors import EngineUnusable, OutOfMemory
from worker_agent.backends import onnxruntime as backend
from worker_agent.providers import ProviderChoice

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"


class FakeRuntime:
    """ONNX Runtime on a machine with GPUs, or with faults of them."""

    def __init__(
        self,
        working: tuple[str, ...] = (CUDA, TENSORRT),
        load_error: str = "",
        run_error: str = "",
        nodes: dict[str, int] | None = None,
    ) -> None:
        self.working = (*working, CPU)
        self.load_error = load_error
        self.run_error = run_error
        self.nodes = nodes
        self.providers: list[tuple[str, dict[str, str]]] = []
        self.entries: dict[str, str] = {}
        self.ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL=0)
        self.__version__ = "1.31.1"

    def get_available_providers(self) -> list[str]:
        return [TENSORRT, CUDA, CPU]

    def set_default_logger_severity(self, severity: int) -> None:
        self.severity = severity

    def SessionOptions(self) -> SimpleNamespace:  # noqa: N802 - the runtime's name
        return SimpleNamespace(add_session_config_entry=self.entries.__setitem__)

    def RunOptions(self) -> SimpleNamespace:  # noqa: N802 - the runtime's name
        return SimpleNamespace(terminate=False)

    def InferenceSession(  # noqa: N802 - the runtime's name
        self,
        _path: Path,
        *,
        sess_options: object,
        providers: list[tuple[str, dict[str, str]]],
        enable_fallback: int,
    ) -> FakeSession:
        assert sess_options is not None
        assert not enable_fallback
        self.providers = providers
        if self.load_error:
            raise RuntimeError(self.load_error)
        return FakeSession(self, [name for name, _ in providers if name in self.working])


class FakeSession:
    def __init__(self, runtime: FakeRuntime, providers: list[str]) -> None:
        self._runtime = runtime
        self._providers = providers

    def get_providers(self) -> list[str]:
        return self._providers

    def get_provider_graph_assignment_info(self) -> list[SimpleNamespace]:
        if self._runtime.nodes is None:
            raise AttributeError
        return [
            SimpleNamespace(ep_name=name, get_nodes=lambda count=count: [None] * count)
            for name, count in self._runtime.nodes.items()
        ]

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="x", type="tensor(float)", shape=[1])]

    get_outputs = get_inputs

    def run(self, *_: object) -> list[NDArray[np.float32]]:
        if self._runtime.run_error:
            raise RuntimeError(self._runtime.run_error)
        return [np.zeros(1, np.float32)]


def load(
    monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime, name: str = "CUDA"
) -> backend.OnnxRuntimeBackend:
    monkeypatch.setattr(backend, "ort", runtime)
    monkeypatch.setattr(backend, "weight_files", lambda _path: [])
    choice = ProviderChoice(name)
    return backend.OnnxRuntimeBackend(SimpleNamespace(name="model.onnx"), 1, choice)  # type: ignore[arg-type]  # only the name is used


@pytest.mark.parametrize("kind", ["CUDA", "TensorRT"])
def test_cuda_of_python_packages_is_loaded_before_the_session(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    runtime = FakeRuntime()
    loaded_before: list[int] = []

    def preload() -> None:
        loaded_before.append(len(runtime.providers))

    monkeypatch.setattr(runtime, "preload_dlls", preload, raising=False)
    load(monkeypatch, runtime, kind)
    assert loaded_before == [0]


@pytest.mark.parametrize(
    ("kind", "runtime", "message"),
    [
        (
            "CUDA",
            FakeRuntime(working=()),
            "does not use CUDA, but fell back to CPUExecutionProvider; see the log",
        ),
        (
            "TensorRT",
            FakeRuntime(working=(CUDA,)),
            "but fell back to CUDAExecutionProvider, CPUExecutionProvider; see the log",
        ),
        (
            "CUDA",
            FakeRuntime(load_error="CUDA failure 101: invalid device ordinal ; GPU=7 ; host=b"),
            "model.onnx with CUDA: CUDA failure 101: invalid device ordinal",
        ),
        ("CUDA", FakeRuntime(nodes={CPU: 12}), "runs none of the 12 nodes of the model"),
    ],
    ids=["missing library", "missing library of one of two", "wrong device", "no node"],
)
def test_session_that_does_not_use_its_provider_is_an_error(
    monkeypatch: pytest.MonkeyPatch, kind: str, runtime: FakeRuntime, message: str
) -> None:
    with pytest.raises(EngineUnusable) as caught:
        load(monkeypatch, runtime, kind)
    assert str(caught.value).endswith(message)


def test_provider_that_the_runtime_was_built_without_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(EngineUnusable) as caught:
        load(monkeypatch, FakeRuntime(), "OpenVINO")
    assert str(caught.value) == (
        "the installed ONNX Runtime 1.31.1 has no OpenVINO, only Tensorrt, CUDA, CPU: "
        "install one with OpenVINO, or remove OpenVINO from --providers"
    )


def test_device_that_runs_out_of_memory_later_lacks_it_now(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(monkeypatch, FakeRuntime(run_error="CUDA failure 2: out of memory"))
    with pytest.raises(OutOfMemory, match="CUDA failure 2: out of memory"):
        loaded.run({"x": np.zeros(1, np.float32)}, ["x"])
