"""Execution providers: settings, options for the runtime, and the configurations they add."""

from pathlib import Path
from typing import Any

import pytest

from synergai.errors import InvalidSettings
from worker_agent.agent_settings import AgentSettings
from worker_agent.providers import ProviderChoice, session_providers, without_cpu

CPU_FALLBACK: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})


def load(tmp_path: Path, text: str) -> AgentSettings:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return AgentSettings.load({}, file)


def test_tables_have_a_device_options_and_a_cache(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        [providers.CPU]
        [providers.TensorRT-fp16]
        provider = "TensorRT"
        device = 1
        cache = "/var/cache/engines"
        options = { trt_fp16_enable = true, trt_max_workspace_size = 1073741824 }
        """,
    )
    [choice] = without_cpu(settings.worker.providers)
    assert (choice.name, choice.kind, choice.device) == ("TensorRT-fp16", "TensorRT", "1")
    assert choice.cache == Path("/var/cache/engines")
    assert choice.options == {"trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('providers = ["Cuda"]', "'Cuda' is not an execution provider; available: CPU, CUDA, "),
        ('providers = ["cuda"]', "did you mean 'CUDA'?"),
        ("[providers.CUDA]\nprovider = false", "provider must be a string, not true or false"),
        ('[providers.CUDA]\nprovider = ""', "provider must not be empty"),
        ("[providers.CUDA]\nspeed = 1", "no setting speed, but provider, device"),
        ("[providers.Builtin.options]\nx = 1", "Builtin has no options, so it cannot use 'x'"),
        ("[providers.CUDA.options]\ndevice_id = 1", "follows from the setting 'device'"),
        ("[providers.OpenVINO.options]\nnum_of_threads = 1", "follows from the setting 'threads'"),
        ('[providers.TensorRT.options]\ntrt_engine_cache_path = "x"', "the setting 'cache'"),
        ('[providers.CUDA]\ndevice = "GPU"', "'GPU' is not a device of CUDA: write the number"),
        ('[providers.XNNPACK]\ndevice = "0"', "XNNPACK has no devices"),
        ('providers = ["CUDA", "CUDA"]', "CUDA is listed twice"),
        ('[providers.CUDA]\ncache = "x"', "keeps no compiled models"),
        ("[providers.CUDA]\ndevice = []", "device must be"),
        ("[providers.CPU]\ncache = 'x'", "CPU is the default provider"),
        ("[providers]\nCUDA = 1", "CUDA: it must be a table"),
        ('[providers."a b"]\nprovider = "CUDA"', "not a valid name of an execution provider"),
    ],
)
def test_invalid_setting_says_what_is_available(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, text)
    assert problem in str(caught.value)
    assert "agent.toml: providers" in str(caught.value)


def choice(kind: str, device: str = "", **rest: Any) -> ProviderChoice:
    return ProviderChoice(name=kind, kind=kind, device=device, **rest)


def test_cuda_computes_as_exactly_as_the_cpu_unless_asked_otherwise() -> None:
    [(_, default), _] = session_providers(choice("CUDA", "0"), 1)
    [(_, asked), _] = session_providers(choice("CUDA", "0", options={"use_tf32": "1"}), 1)
    assert (default["use_tf32"], asked["use_tf32"]) == ("0", "1")


def test_tensorrt_falls_back_to_cuda_on_the_same_device_and_keeps_its_engines() -> None:
    chosen = choice("TensorRT", "1", cache=Path("/cache"), options={"trt_fp16_enable": "1"})
    assert session_providers(chosen, 4) == [
        (
            "TensorrtExecutionProvider",
            {
                "device_id": "1",
                "trt_fp16_enable": "1",
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": "/cache",
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": "/cache",
            },
        ),
        ("CUDAExecutionProvider", {"use_tf32": "0", "device_id": "1"}),
        CPU_FALLBACK,
    ]


def test_number_of_threads_is_passed_where_it_matters() -> None:
    [openvino, _] = session_providers(choice("OpenVINO", "CPU"), 4)
    assert openvino == (
        "OpenVINOExecutionProvider",
        {"device_type": "CPU", "num_of_threads": "4"},
    )
    [gpu, _] = session_providers(choice("OpenVINO", "GPU.1"), 4)
    assert gpu == ("OpenVINOExecutionProvider", {"device_type": "GPU.1"})
    [xnnpack, _] = session_providers(choice("XNNPACK"), 4)
    assert xnnpack == ("XnnpackExecutionProvider", {"intra_op_num_threads": "4"})


def test_nodes_that_a_device_leaves_to_the_cpu_take_one_thread() -> None:
    assert choice("CUDA", "0").threads(0) == 1
    assert choice("OpenVINO", "CPU").threads(4) == 4


def test_engine_host_is_given_all_of_a_choice() -> None:
    chosen = choice("TensorRT", "1", cache=Path("/cache"), options={"trt_fp16_enable": "1"})
    assert ProviderChoice.decode(chosen.encode()) == chosen


def test_only_tensorrt_has_a_cache_by_default(tmp_path: Path) -> None:
    settings = AgentSettings.load({"providers": "TensorRT,OpenVINO"})
    tensorrt, openvino = without_cpu(settings.worker.providers, tmp_path)
    assert tensorrt.cache == tmp_path / "TensorRT"
    assert openvino.cache is None
