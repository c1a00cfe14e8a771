"""Execution providers: settings, options for the runtime, and the configurations they add."""

from pathlib import Path

import pytest

from synergai.errors import InvalidSettings
from worker_agent.agent_settings import AgentSettings
from worker_agent.providers import CPU, ProviderChoice, session_providers, used_gpus

CPU_FALLBACK: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
ON_GPU = ProviderChoice("OpenVINO", {"device_type": "GPU.1"})


def load(tmp_path: Path, text: str) -> AgentSettings:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return AgentSettings.load({}, file)


def test_tables_have_options_as_text(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        [providers.CPU]
        [providers.TensorRT]
        trt_fp16_enable = true
        trt_max_workspace_size = 1073741824
        trt_engine_cache_path = "/var/cache/engines"
        """,
    )
    assert settings.worker.providers == (
        ProviderChoice(CPU),
        ProviderChoice(
            "TensorRT",
            {
                "trt_fp16_enable": "1",
                "trt_max_workspace_size": "1073741824",
                "trt_engine_cache_path": "/var/cache/engines",
            },
        ),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('providers = ["Cuda"]', "'Cuda' is not an execution provider; available: CPU, CUDA, "),
        ('providers = ["cuda"]', "did you mean 'CUDA'?"),
        ("[providers.Builtin]\nx = 1", "Builtin has no options, so it cannot use 'x'"),
        ("[providers.CPU]\ncache = 'x'", "CPU has no options, so it cannot use 'cache'"),
        ("[providers.CUDA]\ndevice_id = []", "CUDA: option 'device_id' must be a text or number"),
        ('providers = ["CUDA", "CUDA"]', "CUDA is listed twice"),
        ("[providers]\nCUDA = 1", "CUDA: it must be a table of options, not 1"),
    ],
)
def test_invalid_setting_says_what_is_available(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, text)
    assert problem in str(caught.value)
    assert "agent.toml: providers" in str(caught.value)


def test_cuda_computes_as_exactly_as_the_cpu_unless_asked_otherwise() -> None:
    [(_, default), _] = session_providers(ProviderChoice("CUDA"), 1)
    [(_, asked), _] = session_providers(ProviderChoice("CUDA", {"use_tf32": "1"}), 1)
    assert (default["use_tf32"], asked["use_tf32"]) == ("0", "1")


def test_tensorrt_falls_back_to_cuda_on_the_same_device() -> None:
    options = {"device_id": "1", "trt_fp16_enable": "1"}
    assert session_providers(ProviderChoice("TensorRT", options), 4) == [
        ("TensorrtExecutionProvider", options),
        ("CUDAExecutionProvider", {"use_tf32": "0", "device_id": "1"}),
        CPU_FALLBACK,
    ]


def test_number_of_threads_is_passed_where_it_matters() -> None:
    [openvino, _] = session_providers(ProviderChoice("OpenVINO"), 4)
    assert openvino == (
        "OpenVINOExecutionProvider",
        {"device_type": "CPU", "num_of_threads": "4"},
    )
    [gpu, _] = session_providers(ON_GPU, 4)
    assert gpu == ("OpenVINOExecutionProvider", {"device_type": "GPU.1"})
    [xnnpack, _] = session_providers(ProviderChoice("XNNPACK"), 4)
    assert xnnpack == ("XnnpackExecutionProvider", {"intra_op_num_threads": "4"})


def test_nodes_that_a_device_leaves_to_the_cpu_take_one_thread() -> None:
    assert ProviderChoice("CUDA").threads(0) == 1
    assert ON_GPU.threads(0) == 1
    assert ProviderChoice("OpenVINO").threads(4) == 4


def test_engine_host_is_given_all_of_a_choice() -> None:
    assert ProviderChoice.decode(ON_GPU.encode()) == ON_GPU


def test_gpus_are_those_that_cuda_computes_on() -> None:
    providers = [ProviderChoice(name) for name in (CPU, "OpenVINO", "TensorRT")]
    assert used_gpus(providers) == {0}
    assert used_gpus([ProviderChoice("CUDA", {"device_id": "2"}), *providers]) == {0, 2}
    assert used_gpus([ProviderChoice("CUDA", {"device_id": "second"})]) == set()
