"""Comparison of answers, with the real scheduling core and workers without an agent."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gateway.verification import verifier as module
from gateway.verification.metrics import VerificationCollector
from gateway.verification.verifier import Verifier
from synergai.domain import Configuration, Session, Variant, WorkerId
from synergai.oip import inference_pb2 as oip
from synergai.scheduling.verification import Standing
from tests.unit.gateway.conftest import ECHO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.fleet.worker import ConnectedWorker
    from tests.unit.gateway.conftest import GatewayHarness

    Answers = Callable[[], float]


def response(value: float) -> bytes:
    message = oip.ModelInferResponse(
        model_name=ECHO, raw_output_contents=[struct.pack("<f", value)]
    )
    message.outputs.add(name="y", datatype="FP32", shape=[1])
    return message.SerializeToString()


def honest() -> float:
    return 1.0


def false() -> float:
    return 2.0


class Fleet:
    """Workers that answer at once, and a verifier of all their answers.

    Attributes:
        ejected: reasons of ejections, by worker.
        ran: which worker ran each query, copies included.
    """

    def __init__(self, harness: GatewayHarness, share: float = 1.0) -> None:
        self.harness = harness
        self.ejected: dict[WorkerId, str] = {}
        self.workers: dict[WorkerId, tuple[ConnectedWorker, Answers]] = {}
        self.ran: list[WorkerId] = []
        self.verifier = Verifier(
            harness.dispatcher,
            self,
            harness.clock,
            new_id=harness.inference.new_id,
            source=random.Random(1),
            share=share,
            tolerance=0.01,
        )
        harness.intake.answers = self.verifier

    def distrust(self, worker_id: WorkerId, reason: str) -> None:
        self.ejected[worker_id] = reason
        self.harness.dispatcher.remove_worker(self.workers.pop(worker_id)[0])

    def add(self, name: str, answers: Answers = honest, *, local: bool = False) -> None:
        worker = self.harness.add_worker(name)
        worker.local = local
        self.harness.dispatcher.remove_worker(worker)
        worker.sessions.add(Session(ECHO, Configuration(1)))
        self.harness.dispatcher.add_worker(worker)
        self.workers[worker.id] = (worker, answers)

    async def ask(self) -> bytes:
        """Send a request, and let all comparisons end that it leads to; return the answer."""
        request = self.harness.begin_request()
        for _ in range(20):
            for worker, answers in list(self.workers.values()):
                for assignment in self.harness.assignments(worker):
                    self.ran.append(worker.id)
                    answer = response(answers())
                    self.harness.complete(worker, assignment, responses=[answer], done=1)
            await asyncio.sleep(0)
        return bytes(await request.result)

    async def ask_until_ejected(self, limit: int = 500) -> int:
        for count in range(1, limit + 1):
            await self.ask()
            if self.ejected:
                return count
        return limit


@pytest.fixture
async def fleet(harness: GatewayHarness) -> AsyncIterator[Fleet]:
    fleet = Fleet(harness)
    yield fleet
    await fleet.verifier.close()


async def test_answers_that_agree_are_confirmed(fleet: Fleet) -> None:
    fleet.add("w1")
    fleet.add("w2", lambda: 1.0 + 1e-6)
    assert await fleet.ask() == response(1.0)
    assert sorted(fleet.ran) == ["w1", "w2"]
    assert fleet.verifier.outcomes["agreed"] == 1
    assert fleet.verifier.standings.get(WorkerId("w2")) == Standing(compared=1)


async def test_copies_are_not_copied_and_nothing_is_left(fleet: Fleet) -> None:
    fleet.add("w1")
    fleet.add("w2")
    for _ in range(10):
        await fleet.ask()
    assert len(fleet.ran) == 20
    assert not fleet.verifier._tasks
    assert fleet.verifier._bytes == 0
    assert not fleet.harness.dispatcher._handlers


async def test_answer_of_a_single_file_is_not_compared_with_one_of_any_variant(
    fleet: Fleet,
) -> None:
    fleet.add("w1")
    fleet.add("w2", false)
    plain, other = (worker for worker, _ in fleet.workers.values())
    other.engines[ECHO] = replace(other.engines[ECHO], variants=(Variant(name="int8"),))
    query = module._Query(ECHO, b"", "", plain.worker_class)
    assert fleet.verifier._others(query, set()) == [plain.id]


@pytest.mark.parametrize("liar", [0, 1, 2])
async def test_liar_is_ejected_wherever_it_stands(fleet: Fleet, liar: int) -> None:
    for index in range(3):
        fleet.add(f"w{index}", false if index == liar else honest)
    await fleet.ask_until_ejected()
    [(worker_id, reason)] = fleet.ejected.items()
    assert worker_id == f"w{liar}"
    assert "answered falsely" in reason
    assert "'y'" in reason
    for _ in range(5):
        assert await fleet.ask() == response(1.0)


async def test_occasional_liar_is_a_suspect_first(fleet: Fleet) -> None:
    source = random.Random(3)
    fleet.add("w0")
    fleet.add("w1")
    fleet.add("w2", lambda: 2.0 if source.random() < 0.3 else 1.0)
    while not fleet.verifier.standings.is_suspect(WorkerId("w2")):
        await fleet.ask()
    assert "false" in fleet.verifier.suspicion(WorkerId("w2"))
    assert fleet.verifier.suspicion(WorkerId("w0")) == ""
    await fleet.ask_until_ejected()
    assert list(fleet.ejected) == ["w2"]


async def test_all_answers_of_a_suspect_are_compared(harness: GatewayHarness) -> None:
    fleet = Fleet(harness, share=1e-9)
    fleet.add("w0", false)
    fleet.add("w1")
    fleet.add("w2")
    for _ in range(20):
        await fleet.ask()
    assert sum(fleet.verifier.outcomes.values()) == 0
    fleet.verifier.standings.false(WorkerId("w0"))
    await fleet.ask_until_ejected()
    assert list(fleet.ejected) == ["w0"]


async def test_two_workers_that_disagree_are_both_shown_and_none_is_ejected(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.add("w1")
    fleet.add("w2", false)
    for _ in range(10):
        await fleet.ask()
    assert not fleet.ejected
    for name in ("w1", "w2"):
        assert "no third worker" in fleet.verifier.suspicion(WorkerId(name))
    assert caplog.text.count("answer differently") == 1


async def test_gateways_own_worker_decides_between_two_and_is_never_ejected(
    fleet: Fleet,
) -> None:
    fleet.add("w1", local=True)
    fleet.add("w2", false)
    await fleet.ask_until_ejected()
    assert list(fleet.ejected) == ["w2"]
    fleet.ejected.clear()
    fleet.add("w3", false)
    fleet.add("w4", false)
    assert await fleet.ask_until_ejected(100) == 100


async def test_engine_whose_answers_vary_is_not_compared_any_more(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    source = random.Random(5)
    for name in ("w1", "w2", "w3"):
        fleet.add(name, lambda: float(source.randrange(3)))
    for _ in range(200):
        await fleet.ask()
    assert not fleet.ejected
    assert caplog.text.count("are not compared any more") == 1


async def test_engine_with_continuous_noise_is_not_compared_any_more(fleet: Fleet) -> None:
    source = random.Random(5)
    for name in ("w1", "w2", "w3"):
        fleet.add(name, source.random)
    for _ in range(50):
        await fleet.ask()
    assert not fleet.ejected
    assert fleet.verifier._excluded == {ECHO}


async def test_without_another_worker_nothing_is_held(fleet: Fleet) -> None:
    fleet.add("w1")
    await fleet.ask()
    assert fleet.verifier.outcomes["dropped"] == 1
    assert not fleet.verifier._tasks


async def test_memory_is_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CASES", 2)
    fleet.add("w1")
    fleet.add("w2")
    held = [fleet.harness.begin_request() for _ in range(2)]
    for worker, _ in fleet.workers.values():
        for assignment in fleet.harness.assignments(worker):
            fleet.harness.complete(worker, assignment, responses=[response(1.0)], done=1)
    monkeypatch.setattr(module, "MAX_BYTES", 1)
    assert len(fleet.verifier._tasks) == 2
    await fleet.ask()
    assert fleet.verifier.outcomes["dropped"] >= 1
    for request in held:
        await request.result


async def test_copy_that_finds_no_idle_worker_in_time_is_dropped(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    fleet.add("w1")
    fleet.add("w2")
    await fleet.ask()
    assert fleet.verifier.outcomes["dropped"] == 1
    assert not fleet.harness.dispatcher._handlers


async def test_outcomes_are_metrics(fleet: Fleet) -> None:
    fleet.harness.metrics.register(
        VerificationCollector(fleet.verifier, fleet.harness.dispatcher.workers)
    )
    for index in range(3):
        fleet.add(f"w{index}", false if index == 2 else honest)
    while not fleet.verifier.outcomes["false"]:
        await fleet.ask()
    metric = fleet.harness.metric
    assert metric("checks_total", outcome="false") == 1
    assert metric("worker_false_answers_total", worker="w2") == 1
    assert metric("worker_compared_answers_total", worker="w0") >= 1
