"""``synergai plan``: the choice, its reasons, and what is wrong with its inputs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from profiler.cutting.stages import cut_engine, split_engine
from profiler.dictionary.files import add_to_dictionary
from profiler.planning.cli import app
from profiler.zoo import recipes as zoo
from synergai.domain import EngineName
from synergai.errors import InvalidInput, InvalidSettings, NotFound
from synergai.profiles.dictionary import DISTURBED, ProfileEntry
from tests.cores import new_entry

ENGINE = EngineName("onnx_digits")
FLEET = """
[[workers]]
id = "edge"
worker_class = "agx"
[[workers]]
id = "cloud"
worker_class = "x86"
"""


def entry(engine: str, worker_class: str, seconds: float, **others: Any) -> ProfileEntry:
    return new_entry(engine, worker_class, 1 / seconds, **others)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan") / "models"
    zoo.build(ENGINE, folder, lambda _: None)
    return folder


class Plan:
    """The command for an engine, with a dictionary and the file of a fleet in a folder."""

    def __init__(self, models: Path, folder: Path) -> None:
        self.models = models
        self.dictionary, self.fleet = folder / "dictionary.db", folder / "fleet.toml"
        self.fleet.write_text(FLEET)

    def know(self, *entries: ProfileEntry) -> None:
        add_to_dictionary(self.dictionary, entries)

    def know_stages(self, fast_s: float, slow_s: float) -> None:
        """One class is slow behind conv1/pool, the other one before it."""
        head, tail = "onnx_digits.s0-3", "onnx_digits.s3-11"
        for worker_class, head_s, tail_s in (("agx", fast_s, slow_s), ("x86", slow_s, fast_s)):
            times = {ENGINE: head_s + tail_s, head: head_s, tail: tail_s}
            self.know(*(entry(each, worker_class, times[each]) for each in times))

    def __call__(self, *arguments: str | Path | int, fleet: bool = True, code: int = 0) -> str:
        given = [ENGINE, "--models", self.models, "--dictionary", self.dictionary, *arguments]
        given += ["--fleet", self.fleet] if fleet else []
        result = CliRunner().invoke(app, list(map(str, given)), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output


@pytest.fixture
def unprofiled(models: Path, tmp_path: Path) -> Plan:
    return Plan(models, tmp_path)


@pytest.fixture
def plan(unprofiled: Plan) -> Plan:
    unprofiled.know_stages(1.0, 9.0)
    return unprofiled


def test_engine_is_split_where_workers_are_good_at_different_parts(plan: Plan) -> None:
    said = plan()
    assert said.startswith("2 stages, 1 queries/s: ends 80% earlier than whole on edge\n")
    [first] = (line for line in said.splitlines() if "onnx_digits.s0-3" in line)
    [second] = (line for line in said.splitlines() if "onnx_digits.s3-11" in line)
    assert first.startswith("edge")
    assert "conv1/pool" in first
    assert second.startswith("cloud")
    assert "whole on cloud" in said


def test_split_that_hardly_saves_time_is_chosen_for_a_deadline_only(unprofiled: Plan) -> None:
    unprofiled.know_stages(4.95, 5.05)
    assert unprofiled().startswith(
        "whole on edge, 0.1 queries/s: ends about as early as 2 stages\n"
    )
    assert unprofiled("--deadline", "9.95s").startswith("2 stages, 0.202 queries/s: ends 1% earl")


def test_replicas_are_chosen_over_stages_where_workers_are_alike(plan: Plan) -> None:
    plan.fleet.write_text(FLEET.replace("agx", "x86"))
    said = plan("--queries", 10)
    assert said.startswith("replicas, 0.2 queries/s: ends 41% earlier than 2 stages\n")


def test_missed_deadline_is_told_and_exits_with_1(plan: Plan) -> None:
    assert "deadline of 1 s: missed by 1 s" in plan("--deadline", "1s", code=1)
    assert "deadline of 3 s: met by 1 s" in plan("--deadline", "3s")


def test_class_without_times_of_stages_runs_the_engine_whole(unprofiled: Plan) -> None:
    unprofiled.know(entry(ENGINE, "x86", 1.0))
    said = unprofiled(fleet=False)
    assert said.startswith("whole on x86, 1 queries/s: the only worker\n")
    assert "'synergai profile --stages --engines onnx_digits' measures them" in said


def test_times_of_a_class_without_profile_are_predicted_with_the_command_that_measures_them(
    plan: Plan,
) -> None:
    plan.fleet.write_text(FLEET.replace("agx", "nx"))
    said = plan()
    assert "the times of class nx are predicted from other profiles, " in said
    assert "% off at the median for other classes; measure" in said
    assert "measure them there with 'synergai profile --stages --engines onnx_digits'" in said
    assert said.count("predicted, ") == said.count("onnx_digits.s0-3  ") == 1
    answer = json.loads(plan("--json"))
    legs = {leg["worker"]: leg for leg in answer["options"][-1]["routes"][0]["legs"]}
    assert "predicted" in legs["edge"]["configuration"]
    assert "predicted" not in legs["cloud"]["configuration"]


def test_times_that_an_agent_has_measured_are_predicted_with(plan: Plan) -> None:
    def whole_s(query_s: float) -> float:
        known = f'worker_class = "nx"\nquery_s = {{ "{ENGINE}" = {query_s} }}'
        plan.fleet.write_text(FLEET.replace('worker_class = "agx"', known))
        answer = json.loads(plan("--json"))
        [option] = (each for each in answer["options"] if each["name"] == "whole on edge")
        seconds: float = option["latency_s"]
        return seconds

    assert whole_s(100.0) > 2 * whole_s(10.0)


def test_fleet_without_any_profile_is_refused(unprofiled: Plan) -> None:
    unprofiled.know(entry("other", "x86", 1.0))
    with pytest.raises(NotFound, match=r"no entry of 'onnx_digits' on agx; measure.* on x86; mea"):
        unprofiled()
    with pytest.raises(NotFound, match="has no entry of 'onnx_digits'; measure it with"):
        unprofiled(fleet=False)


def test_budget_that_no_stage_fits_is_refused(plan: Plan) -> None:
    plan.fleet.write_text(FLEET.replace("worker_class", "memory_mb = 20\nworker_class"))
    with pytest.raises(
        InvalidInput, match=r"nothing fits: .* that of edge, 20\.0 MB; raise memory_mb"
    ):
        plan()


def test_workers_that_are_too_small_for_stages_are_told_what_each_one_needs(plan: Plan) -> None:
    plan.fleet.write_text(FLEET.replace("worker_class", "memory_mb = 68.05\nworker_class"))
    needs = r"nothing fits: onnx_digits needs 68\.2 MB whole and 68\.1 MB on each of 2 workers in"
    with pytest.raises(InvalidInput, match=needs):
        plan()


def test_entries_of_another_model_file_are_not_used(unprofiled: Plan) -> None:
    digest = cut_engine(unprofiled.models, ENGINE).digest
    unprofiled.know(entry(ENGINE, "x86", 2.0, digest=digest))
    unprofiled.know(entry(ENGINE, "agx", 1.0, digest="0" * 64))
    said = unprofiled()
    assert "1 entry of another model file left out" in said
    assert "the times of class agx are predicted" in said


def test_damaged_model_is_not_planned(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "models", tmp_path)
    (plan.models / ENGINE).mkdir(parents=True)
    (plan.models / ENGINE / "model.onnx").write_bytes(b"no model")
    plan.know(entry(ENGINE, "x86", 1.0))
    with pytest.raises(InvalidInput, match=r"'onnx_digits': model\.onnx: it is corrupt"):
        plan(fleet=False)


def test_queries_of_a_worker_take_no_hop_to_it(plan: Plan) -> None:
    found = json.loads(plan("--source", "edge", "--json"))
    sent_s = {
        option["name"]: option["latency_s"]
        - sum(leg["seconds"] for leg in option["routes"][0]["legs"])
        for option in found["options"]
    }
    assert sent_s["whole on edge"] == 0
    assert sent_s["2 stages"] > 0
    assert sent_s["whole on cloud"] > 0


def test_times_of_a_busy_machine_are_told(unprofiled: Plan) -> None:
    unprofiled.know(entry(ENGINE, "x86", 1.0, label=DISTURBED))
    assert "1 entry measured on a busy machine" in unprofiled(fleet=False)


def test_engine_is_cut_at_its_exits_and_counts_the_queries_that_continue(
    plan: Plan, tmp_path: Path
) -> None:
    exits = shutil.copytree(plan.models, tmp_path / "exits")
    split_engine(cut_engine(exits, ENGINE), exits, ["conv1/pool"], lambda *_: None)
    with (exits / f"{ENGINE}.s0-3" / "engine.toml").open("a") as file:
        file.write('[exit]\noutput = "probabilities"\nthreshold = 0.9\nrate = 0.75\n')
    without = json.loads(plan("--queries", 9, "--json"))
    plan.models = exits
    found = json.loads(plan("--queries", 9, "--json"))
    [split], [former] = (
        [each for each in answer["options"] if each["name"] == "2 stages"]
        for answer in (found, without)
    )
    assert [leg["ends_at"] for leg in split["routes"][0]["legs"]] == ["conv1/pool", ""]
    assert (former["interval_s"], split["interval_s"]) == (1.0, 1.0)
    assert former["latency_s"] == pytest.approx(2.0, abs=0.01)
    assert split["latency_s"] == pytest.approx(1.25, abs=0.01)
    assert "25% of the queries continue, as at calibration" in found["notes"][0]
    with plan.fleet.open("a") as file:
        file.write(f'\n[exits]\n"{ENGINE}.s0-3" = 0.5\n')
    learned = json.loads(plan("--queries", 9, "--json"))
    assert "50% of the queries continue, as in the fleet" in learned["notes"][0]
    [split] = [each for each in learned["options"] if each["name"] == "2 stages"]
    assert split["latency_s"] == pytest.approx(1.5, abs=0.01)


def test_graphs_are_read_in_a_child_process_only(plan: Plan) -> None:
    files = ("--models", plan.models, "--dictionary", plan.dictionary, "--fleet", plan.fleet)
    program = (
        "import sys; from profiler.planning.cli import app; app(standalone_mode=False);"
        "sys.exit('onnx' in sys.modules)"
    )
    command = [sys.executable, "-c", program, ENGINE, "--json", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choice"] == "2 stages"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (("--planner", "best"), "--planner: 'best' is not in synergai.route_planners; available: "),
        (("--source", "egde"), "there is no worker 'egde'; did you mean edge"),
        (("--deadline", "soon"), "--deadline: "),
        (("--deadline", "-3"), "--deadline: it must be positive, not -3 s"),
    ],
)
def test_faulty_option_is_refused(plan: Plan, given: tuple[str, ...], fault: str) -> None:
    with pytest.raises(InvalidSettings, match=fault):
        plan(*given)
