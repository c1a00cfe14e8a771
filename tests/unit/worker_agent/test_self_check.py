"""The self-check of a loaded model, with a model that is particular about its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from synergai.domain import EngineName, TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.directory import EngineDefinition
from worker_agent.host.loading import SelfCheck

if TYPE_CHECKING:
    from worker_agent.backends import Array


class Particular:
    """A model of one input, which fails unless `accepts` it."""

    def __init__(
        self, spec: TensorSpec, accepts: Callable[[Array], bool], error: Exception | None = None
    ) -> None:
        self.inputs = (spec,)
        self.outputs = (TensorSpec("y", "FP32", (-1,)),)
        self.runs = 0
        self.now = 0.0
        self._accepts = accepts
        self._error = error or EngineUnusable("the runtime failed")

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.runs += 1
        self.now += 0.01
        array = inputs[self.inputs[0].name]
        if not self._accepts(array):
            raise self._error
        return [array for _ in outputs]


DYNAMIC = TensorSpec("x", "FP32", (-1, -1))
ENGINE = EngineDefinition(name=EngineName("e"), file=None)  # type: ignore[arg-type]  # not read


def check(model: Particular, definition: EngineDefinition = ENGINE) -> tuple[int, str]:
    checked = SelfCheck(model, lambda: model.now).run(definition)
    return len(checked.samples), checked.unverified


def test_model_that_accepts_anything_is_warmed_up_with_three_runs() -> None:
    model = Particular(DYNAMIC, lambda _: True)
    assert check(model) == (8, "")
    assert model.runs == 3


def test_fastest_run_tells_how_long_a_query_takes() -> None:
    extra_s = iter((0.2, 0.0, 0.5))

    def accepts(_: Array) -> bool:
        model.now += next(extra_s)
        return True

    model = Particular(DYNAMIC, accepts)
    checked = SelfCheck(model, lambda: model.now).run(ENGINE)
    assert checked.query_s == pytest.approx(0.01)


@pytest.mark.parametrize(("run_s", "runs"), [(0.4, 3), (2.0, 2), (4.0, 1)])
def test_slow_model_is_warmed_up_with_fewer_runs(run_s: float, runs: int) -> None:
    model = Particular(DYNAMIC, lambda _: True)
    begun_and_ended = iter(range(100))
    SelfCheck(model, lambda: run_s * next(begun_and_ended)).run(ENGINE)
    assert model.runs == runs


@pytest.mark.parametrize(
    "accepts",
    [
        lambda x: x.shape[1] >= 2,
        lambda x: x.shape[0] >= 2,
        lambda x: x.shape[1] >= 33,
        lambda x: x.shape[1] % 16 == 0,
        lambda x: (x == 1).all(),
        lambda x: (x == 0).all(),
    ],
)
def test_other_sizes_and_values_are_tried(accepts: Callable[[Array], bool]) -> None:
    assert check(Particular(DYNAMIC, accepts)) == (8, "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidInput("bad shape"), "bad shape"),
        (EngineUnusable("e" * 500), "e…"),
        (KeyError("x"), "KeyError in the backend"),
    ],
)
def test_model_that_accepts_no_synthetic_input_is_unverified(error: Exception, reason: str) -> None:
    samples, unverified = check(Particular(DYNAMIC, lambda _: False, error))
    assert samples == 0
    assert unverified.startswith("the model fails on synthetic inputs: ")
    assert unverified.endswith(reason)


def test_search_ends_after_two_seconds() -> None:
    model = Particular(DYNAMIC, lambda _: False)
    ticks = iter(range(1000))
    SelfCheck(model, lambda: 0.5 * next(ticks)).run(ENGINE)
    assert model.runs <= 5


def test_model_with_inputs_beyond_all_limits_is_unverified() -> None:
    model = Particular(TensorSpec("x", "FP32", (1 << 40,)), lambda _: True)
    assert check(model) == (0, "its inputs are too large for synthetic samples")


def test_sample_set_that_the_model_fails_on_leaves_it_unverified(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.zeros((3, 4), np.float32))
    definition = EngineDefinition(
        name=EngineName("e"), file=ENGINE.file, samples=tmp_path / "samples.npz"
    )
    samples, unverified = check(Particular(DYNAMIC, lambda x: x.shape[1] == 2), definition)
    assert samples == 3
    assert unverified == "the model fails on its samples.npz: the runtime failed"
