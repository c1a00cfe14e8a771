"""Configurations to search: levels of threads, power modes, execution providers, batches."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from profiler.measuring.generators import Draft, Machine, find_engines, generate
from profiler.measuring.search.space import Knobs
from profiler.measuring.search_run import knobs_of
from synergai.domain import Configuration, EngineName
from synergai.errors import NotFound
from synergai.models.directory import EngineDefinition
from worker_agent.cpu_affinity import powers_of_two
from worker_agent.power.controller import PowerMode
from worker_agent.providers import CPU, ProviderChoice

ENGINE = EngineDefinition(
    name=EngineName("e"), backend="onnxruntime", file=Path("e/model.onnx"), max_batch=8
)
MAXN = PowerMode(name="MAXN", cores=8)
FEW = PowerMode(name="MODE_15W_DESKTOP", cores=4, max_mhz=2188.8, budget_w=15)
REBOOT = PowerMode(name="MODE_10W", cores=2, max_mhz=1200, refused="needs a reboot")


def texts(drafts: list[Draft]) -> list[str]:
    return [str(draft.configuration) for draft in drafts]


@pytest.mark.parametrize(
    ("cores", "levels"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_levels_of_threads_are_powers_of_two_and_all_cores(cores: int, levels: list[int]) -> None:
    assert powers_of_two(cores) == levels


def test_each_mode_has_levels_up_to_its_cores() -> None:
    drafts, _ = generate(ENGINE, Machine((MAXN, FEW)))
    assert texts(drafts) == [
        *(f"threads={count},mode=MAXN" for count in (1, 2, 4, 8)),
        *(f"threads={count},mode=MODE_15W_DESKTOP" for count in (1, 2, 4)),
    ]
    assert {draft.max_batch for draft in drafts} == {8}


def test_what_is_left_out_has_a_reason() -> None:
    same = replace(FEW, name="MODE_15W_OTHER")
    drafts, pruned = generate(ENGINE, Machine((FEW, same), refused=(REBOOT,)))
    assert {draft.configuration.power_mode for draft in drafts} == {FEW.name}
    assert {each.what: each.reason for each in pruned} == {
        "mode MODE_15W_OTHER": f"has the cores, clocks and budget of {FEW.name}",
        "mode MODE_10W": "needs a reboot",
    }


def test_modes_of_which_only_the_cores_are_known_are_all_searched() -> None:
    other = replace(MAXN, name="OTHER")
    drafts, _ = generate(ENGINE, Machine((MAXN, other)), [1])
    assert len(drafts) == 2


def test_given_levels_beyond_a_modes_cores_are_left_out() -> None:
    drafts, pruned = generate(ENGINE, Machine((MAXN, FEW)), [1, 8])
    assert texts(drafts) == [
        "threads=1,mode=MAXN",
        "threads=8,mode=MAXN",
        "threads=1,mode=MODE_15W_DESKTOP",
    ]
    assert "more threads than cores (4)" in pruned[0].reason


def test_zero_threads_mean_one_per_core_of_the_mode_or_machine() -> None:
    assert texts(generate(ENGINE, Machine((FEW,)), [0])[0]) == [f"threads=4,mode={FEW.name}"]
    cores = len(os.sched_getaffinity(0))
    assert texts(generate(ENGINE, Machine(), [0])[0]) == [f"threads={cores}"]


def test_threads_are_limited_by_pinned_cores() -> None:
    for modes in ((), (MAXN,)):
        [draft], pruned = generate(ENGINE, Machine(modes, pinned=(2, 3, 5)), [0, 4])
        assert draft.configuration.threads == 3
        assert "more threads than cores (3)" in pruned[0].reason


def test_each_variant_is_measured_in_each_configuration(tmp_path: Path) -> None:
    (tmp_path / "family").mkdir()
    for file in ("full", "int8"):
        (tmp_path / "family" / f"{file}.onnx").write_bytes(b"model")
    tables = [f'[[variants]]\nname = "{n}"\nfile = "{n}.onnx"\n' for n in ("full", "int8")]
    (tmp_path / "family/engine.toml").write_text("".join(tables))

    [family] = find_engines(tmp_path, [])
    drafts, _ = generate(family, Machine((FEW,)), [1, 2])

    assert texts(drafts) == [
        f"threads={threads},mode={FEW.name},variant={variant}"
        for threads in (1, 2)
        for variant in ("full", "int8")
    ]


def test_empty_model_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no usable engine"):
        find_engines(tmp_path, [])


def test_provider_without_threads_has_one_configuration() -> None:
    providers = ProviderChoice(CPU), ProviderChoice("CUDA")
    drafts, _ = generate(ENGINE, Machine((), providers, pinned=(0, 1)), [2])
    assert texts(drafts) == ["threads=2", "provider=CUDA"]


def test_provider_is_searched_with_engines_that_it_runs() -> None:
    machine = Machine((FEW,), (ProviderChoice("OpenVINO"),))
    drafts, _ = generate(ENGINE, machine)
    assert any(draft.configuration.execution_provider for draft in drafts)
    drafts, pruned = generate(replace(ENGINE, backend="tensorflow"), machine)
    assert not any(draft.configuration.execution_provider for draft in drafts)
    assert any("does not run tensorflow engines" in each.reason for each in pruned)


def test_knobs_have_the_clock_times_the_share_of_the_mode() -> None:
    half = PowerMode(name="0.5cpu", cores=1, share=0.5)
    machine = Machine((MAXN, FEW, half), top_mhz=2265.6)
    assert knobs_of(Configuration(2, FEW.name), machine) == Knobs(2, 4, 2188.8)
    assert knobs_of(Configuration(8, "MAXN"), machine) == Knobs(8, 8, 2265.6)
    assert knobs_of(Configuration(1, "0.5cpu"), machine) == Knobs(1, 1, 1132.8)


def test_modes_are_ordered_by_cores_times_clock_whatever_their_names() -> None:
    slow = PowerMode(name="MODE_30W_ALL", cores=8, max_mhz=1200, budget_w=30)
    assert sorted((MAXN, slow, FEW), key=lambda mode: mode.speed) == [FEW, slow, MAXN]
