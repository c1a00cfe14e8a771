"""Which execution providers are offered; the runtimes are fakes."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from synergai.domain import Configuration
from synergai.errors import InvalidInput, Unavailable
from worker_agent.agent_settings import AgentSettings
from worker_agent.hosts import provider_offers
from worker_agent.hosts.provider_offers import Runtimes, find_offers
from worker_agent.providers import Offers, ProviderChoice, without_cpu


class FakeRuntimes(Runtimes):
    def __init__(
        self,
        available: Sequence[str] = (),
        faults: Mapping[str, str] | None = None,
        backends: Sequence[str] = ("onnxruntime",),
    ) -> None:
        self._available = [*available, "CPUExecutionProvider"]
        self._faults = faults or {}
        self._backends = backends
        self.asked = 0

    def has(self, backend: str) -> bool:
        return backend in self._backends

    def ships_providers(self) -> bool:
        return len(self._available) > 1

    async def available(self) -> list[str]:
        self.asked += 1
        return self._available

    async def fault(self, choice: ProviderChoice, backend: str) -> str:
        assert self.has(backend)
        return self._faults.get(f"{choice.kind}{choice.device}", "")


def find(names: str, runtimes: FakeRuntimes) -> Offers:
    settings = AgentSettings.load({"providers": names} if names else {})
    return asyncio.run(find_offers(settings.worker.providers, runtimes))


def test_all_that_can_be_used_are_offered_by_default() -> None:
    runtimes = FakeRuntimes(
        ["TensorrtExecutionProvider", "CUDAExecutionProvider", "AzureExecutionProvider"],
        {"TensorRT0": "libnvinfer.so.10: cannot open shared object file"},
    )
    offers = find("", runtimes)
    assert offers.cpu
    assert [str(choice) for choice in offers.choices] == ["CUDA on device 0"]
    assert [(str(each.choice), each.reason) for each in offers.refusals] == [
        ("TensorRT on device 0", "libnvinfer.so.10: cannot open shared object file")
    ]


def test_wanted_ones_are_offered_and_no_others() -> None:
    runtimes = FakeRuntimes(["CUDAExecutionProvider", "OpenVINOExecutionProvider"])
    offers = find("OpenVINO", runtimes)
    assert not offers.cpu
    assert [choice.name for choice in offers.choices] == ["OpenVINO"]


def test_wanted_one_that_is_not_installed_is_an_error_that_names_the_others() -> None:
    runtimes = FakeRuntimes(["OpenVINOExecutionProvider"])
    with pytest.raises(InvalidInput) as caught:
        find("CPU,CUDA", runtimes)
    assert str(caught.value) == (
        "execution provider CUDA is not installed here: it needs onnxruntime with CUDA; "
        "available: CPU, OpenVINO"
    )


def test_wanted_device_that_is_missing_leaves_the_others() -> None:
    runtimes = FakeRuntimes(["CUDAExecutionProvider"], {"CUDA0": "CUDA failure 101: no device"})
    offers = find("CPU,CUDA", runtimes)
    assert (offers.cpu, offers.choices) == (True, ())
    assert offers.refusals[0].reason == "CUDA failure 101: no device"


def test_xnnpack_of_tensorflow_lite_needs_no_onnxruntime() -> None:
    offers = find("CPU,XNNPACK,Builtin", FakeRuntimes(backends=["tflite"]))
    assert [choice.name for choice in offers.choices] == ["XNNPACK", "Builtin"]


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the check be a Python program of one line."""
    monkeypatch.setattr(provider_offers, "_CHECK", ("-c", text))


def fault_of(kind: str) -> str:
    settings = AgentSettings.load({"providers": kind})
    [choice] = without_cpu(settings.worker.providers)
    return asyncio.run(provider_offers.Runtimes().fault(choice, "onnxruntime"))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("CUDA fails: CUDA failure 100: no device", "CUDA fails: CUDA failure 100: no device"),
        ("Install CUDA.", "Install CUDA: CUDA failure 100: no device"),
    ],
)
def test_reason_of_the_log_is_added_unless_it_is_known(
    monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    log = "[E:onnxruntime:Default, cuda_call.cc:119] CUDA failure 100: no device ; GPU=-1"
    script(monkeypatch, f"import sys; sys.stderr.write({log!r}); print('\"{fault}\"')")
    assert fault_of("CUDA") == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os; os.abort()", "the runtime died by signal 6: no message"),
        ("raise OSError('no driver')", "OSError: no driver"),
        ("pass", "the check has printed ''"),
        ("print('hello')", "the check has printed 'hello'"),
    ],
    ids=["crashes", "fails", "no result", "no such result"],
)
def test_check_without_a_result_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    script(monkeypatch, text)
    assert fault_of("CUDA") == reason


def test_check_that_hangs_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(provider_offers, "_TIMEOUT_S", 0.01)
    assert fault_of("CUDA") == "no result within 0.01 s"


def test_runtime_that_cannot_be_asked_leaves_the_cpu() -> None:
    class Broken(FakeRuntimes):
        async def available(self) -> list[str]:
            raise Unavailable("libcudart.so cannot be opened")

    offers = find("", Broken(["CUDAExecutionProvider"]))
    assert (offers.cpu, offers.choices) == (True, ())


def test_agent_lists_configurations_of_providers_before_those_of_the_cpu() -> None:
    config = AgentSettings.load({"threads": "1,2"})
    offers = find("CPU,CUDA", FakeRuntimes(["CUDAExecutionProvider"]))
    assert config.worker.configurations((), offers) == (
        Configuration(0, "", "CUDA"),
        Configuration(1),
        Configuration(2),
    )
