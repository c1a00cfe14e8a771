import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import LATEST, PolicyFile, VersionPolicy, Versions, draw
from gateway.hub.rollouts import Rollouts
from synergai.domain import EngineName, WorkerId
from synergai.errors import (
    Conflict,
    EngineUnusable,
    InvalidInput,
    NotFound,
    SynergaiError,
    Unavailable,
)
from synergai.names import split_version, stage_name
from tests.unit.gateway.test_versions import ECHO, W1, of, with_other_outputs
from tests.waiting import turns

IDS = [f"request-{number}" for number in range(2_000)]
SHARES = st.floats(0.0, 1.0)


class FakeLoader:
    """Loads engines when the test says so.

    Attributes:
        loads: engines being loaded.
        faults: engines that cannot be loaded, with the error.
        waits: engines whose load takes until `finish`.
    """

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.faults: dict[str, SynergaiError] = {}
        self.waits: dict[str, asyncio.Event] = {}

    async def load(self, name: str, budget_s: float | None = None) -> None:
        assert budget_s is None
        self.loads.append(name)
        if name in self.waits:
            await self.waits[name].wait()
        if name in self.faults:
            raise self.faults[name]


class FakeStore:
    def __init__(self) -> None:
        self.written: dict[str, VersionPolicy] = {}
        self.fault: SynergaiError | None = None

    async def write(self, policies: Mapping[str, VersionPolicy]) -> None:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        self.written = dict(policies)


class Fleet:
    """Versions of ``echo`` on one worker, and rollouts of them."""

    def __init__(self, policies: Mapping[str, VersionPolicy] | None = None) -> None:
        self.catalogue = Catalogue()
        self.versions = Versions(self.catalogue, policies)
        self.loader, self.store = FakeLoader(), FakeStore()
        self.rollouts = Rollouts(self.versions, self.loader.load, self.store.write)

    def serve(self, *versions: str) -> None:
        for version in versions:
            self.catalogue.update(W1, of(version))

    async def begin(self, share: float) -> None:
        """Begin a rollout of version 2."""
        self.serve("2")
        await self.rollouts.start(ECHO, "2", share)

    def chosen(self, request_id: str = "") -> str:
        return split_version(self.versions.resolve(ECHO, "", request_id))[1]

    def counts(self) -> Counter[str]:
        return Counter(map(self.chosen, IDS))

    @property
    def policy(self) -> VersionPolicy:
        return self.versions.policy(ECHO)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    fleet.serve("1")
    assert fleet.chosen() == "1"
    yield fleet
    await fleet.rollouts.close()


async def test_version_that_runs_in_stages_is_prepared_once_these_are_loaded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.hub.rollouts._LOOK_S", 0.0)
    stages = fleet.catalogue.stages
    stages.any, stages.awaited = True, {EngineName("echo/2")}
    fleet.serve("2")
    await turns(20)
    assert fleet.chosen() == "1"
    stages.awaited, stages.preferred = set(), {EngineName("echo/2")}
    await turns(5)
    assert fleet.chosen() == "2"
    assert not fleet.loader.loads


# --- records ------------------------------------------------------------------------------------


async def test_client_is_not_told_where_the_policies_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    rollouts = Rollouts(fleet.versions, fleet.loader.load, PolicyFile(tmp_path / "gone").write)
    fleet.serve("1", "2")
    with pytest.raises(Unavailable, match="policy of engine 'echo' cannot be recorded") as raised:
        await rollouts.pin(ECHO, "1")
    assert str(tmp_path) not in str(raised.value)
    assert str(tmp_path) in caplog.text
    await rollouts.close()


async def test_changes_at_the_same_time_are_all_recorded(fleet: Fleet) -> None:
    fleet.serve("2")
    other = EngineName("other")
    fleet.catalogue.update(W1, structs.replace(of("1"), name=other))
    await asyncio.gather(fleet.rollouts.pin(ECHO, "2"), fleet.rollouts.pin("other", "1"))
    assert fleet.store.written == {
        ECHO: VersionPolicy(base="2"),
        "other": VersionPolicy(base="1"),
    }


async def test_of_two_rollouts_that_begin_at_the_same_time_one_is_refused(fleet: Fleet) -> None:
    fleet.serve("2", "3")
    began = await asyncio.gather(
        *(fleet.rollouts.start(ECHO, each, 0.1) for each in ("2", "3")), return_exceptions=True
    )
    assert [type(each) for each in began] == [type(None), Conflict]
    assert fleet.policy.target == "2"


async def test_rollout_that_is_rolled_back_meanwhile_is_not_promoted(fleet: Fleet) -> None:
    await fleet.begin(0.1)
    ended = await asyncio.gather(
        fleet.rollouts.roll_back(ECHO), fleet.rollouts.promote(ECHO), return_exceptions=True
    )
    assert [type(each) for each in ended] == [type(None), InvalidInput]
    assert fleet.policy == VersionPolicy(base="1")


# --- shares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["2", "3", "17"])
def test_share_of_requests_gets_the_new_version(target: str) -> None:
    drawn = [draw(ECHO, target, request_id) for request_id in IDS]
    for share in (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0):
        taken = sum(each < share for each in drawn)
        sigma = math.sqrt(len(IDS) * share * (1 - share))
        assert abs(taken - len(IDS) * share) <= 3 * sigma, share


@given(SHARES, SHARES, st.text(min_size=1))
def test_growing_share_only_moves_requests_to_the_new_version(
    first: float, second: float, request_id: str
) -> None:
    less, more = sorted((first, second))
    drawn = draw(ECHO, "2", request_id)
    assert drawn == draw(ECHO, "2", request_id)
    assert 0.0 <= drawn < 1.0
    assert not (drawn < less and not drawn < more)


@pytest.mark.parametrize("share", [-0.01, 1.1, math.nan, math.inf])
async def test_share_beyond_all_requests_is_refused(fleet: Fleet, share: float) -> None:
    with pytest.raises(InvalidInput, match="share must be from 0 % to 100 %"):
        await fleet.begin(share)
    assert fleet.policy == LATEST


# --- changes ------------------------------------------------------------------------------------


async def test_rollout_grows_and_is_promoted(fleet: Fleet) -> None:
    await fleet.rollouts.pin(ECHO, "1")
    fleet.serve("2")
    moved: set[str] = set()
    for share in (0.0, 0.1, 0.5, 1.0):
        await fleet.rollouts.start(ECHO, "2", share)
        now = {request_id for request_id in IDS if fleet.chosen(request_id) == "2"}
        assert moved <= now
        assert abs(len(now) - share * len(IDS)) < 100
        moved = now
    await fleet.rollouts.promote(ECHO)
    assert fleet.counts() == {"2": len(IDS)}
    assert fleet.store.written == {ECHO: VersionPolicy(base="2")}
    assert fleet.loader.loads == ["echo/2"]


async def test_rollout_is_rolled_back_to_the_old_version(fleet: Fleet) -> None:
    await fleet.begin(0.5)
    await fleet.rollouts.roll_back(ECHO)
    assert fleet.counts() == {"1": len(IDS)}
    await fleet.rollouts.follow_latest(ECHO)
    assert fleet.counts() == {"2": len(IDS)}
    assert fleet.store.written == {}


async def test_new_version_gets_requests_once_it_is_loaded(fleet: Fleet) -> None:
    fleet.loader.waits["echo/2"] = asyncio.Event()
    rollout = asyncio.create_task(fleet.begin(1.0))
    await turns()
    assert fleet.counts() == {"1": len(IDS)}
    fleet.loader.waits["echo/2"].set()
    await rollout
    assert fleet.counts() == {"2": len(IDS)}
    assert fleet.loader.loads == ["echo/2"]


async def test_highest_version_takes_over_once_it_is_loaded(fleet: Fleet) -> None:
    fleet.loader.waits["echo/2"] = asyncio.Event()
    fleet.serve("2")
    assert fleet.chosen() == "1"
    await turns()
    assert fleet.chosen() == "1"
    fleet.loader.waits["echo/2"].set()
    await turns()
    assert fleet.chosen() == "2"


async def test_highest_version_that_cannot_be_loaded_does_not_take_over(fleet: Fleet) -> None:
    fleet.loader.faults["echo/2"] = EngineUnusable("no memory")
    fleet.serve("2")
    assert fleet.chosen() == "1"
    await turns()
    assert fleet.counts() == {"1": len(IDS)}


async def test_rollout_to_a_version_that_cannot_be_loaded_is_rolled_back(fleet: Fleet) -> None:
    fleet.loader.faults["echo/2"] = EngineUnusable("no memory")
    with pytest.raises(EngineUnusable, match="rolled back to version 1: no memory"):
        await fleet.begin(0.5)
    await turns()
    assert fleet.policy == VersionPolicy(base="1", reason="no memory")
    assert fleet.store.written == {ECHO: fleet.policy}
    assert fleet.counts() == {"1": len(IDS)}


async def test_rollout_to_a_version_that_breaks_later_is_rolled_back(fleet: Fleet) -> None:
    await fleet.begin(0.5)
    fleet.catalogue.update(WorkerId("w2"), of("2"))
    fleet.catalogue.update(W1, of("2", "it crashes"))
    assert fleet.policy.target == "2"
    fleet.catalogue.update(WorkerId("w2"), of("2", "it crashes"))
    assert fleet.policy.base == "1"
    assert "it crashes" in fleet.policy.reason
    assert fleet.counts() == {"1": len(IDS)}


async def test_requests_get_the_old_version_while_no_worker_has_the_new_one(fleet: Fleet) -> None:
    await fleet.begin(1.0)
    fleet.catalogue.withdraw(W1, EngineName("echo/2"))
    assert fleet.counts() == {"1": len(IDS)}
    fleet.serve("2")
    await turns()
    assert fleet.counts() == {"2": len(IDS)}
    fleet.catalogue.withdraw(W1, EngineName("echo"))
    await fleet.rollouts.start(ECHO, "2", 0.0)
    assert fleet.counts() == {"2": len(IDS)}


async def test_version_in_stages_gets_its_share_and_all_requests_when_pinned(fleet: Fleet) -> None:
    for first, last in ((0, 4), (4, 9)):
        name = stage_name("echo/2", first, last)
        stage = structs.replace(of("2"), name=name, stage_of="a" * 64, stage_end=9)
        fleet.catalogue.update(WorkerId(f"w{first}"), stage)
    await fleet.rollouts.start(ECHO, "2", 0.5)
    assert set(fleet.counts()) == {"1", "2"}
    fleet.catalogue.withdraw(W1, EngineName("echo"))
    assert fleet.counts() == {"2": len(IDS)}
    fleet.serve("1")
    await fleet.rollouts.promote(ECHO)
    assert fleet.counts() == {"2": len(IDS)}
    assert fleet.loader.loads == []  # its stages are loaded by the queries


async def test_version_that_waits_for_a_rollout_is_logged_with_the_command_that_starts_it(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.versions.find(ECHO)
    fleet.catalogue.update(W1, with_other_outputs("2"))
    assert fleet.chosen() == "1"
    assert "'synergai engines rollout echo --to 2 --share 100%'" in caplog.text


async def test_pinned_version_is_never_replaced_by_another(fleet: Fleet) -> None:
    await fleet.rollouts.pin(ECHO, "1")
    fleet.serve("2")
    assert fleet.chosen() == "1"
    fleet.catalogue.withdraw(W1, EngineName("echo"))
    with pytest.raises(Unavailable):
        fleet.versions.find(ECHO)


async def test_load_that_no_worker_can_do_now_is_tried_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.hub.rollouts.RETRY_S", 0.0)
    fleet.loader.faults["echo/2"] = Unavailable("all workers are draining")
    rollout = asyncio.create_task(fleet.begin(1.0))
    await turns()
    assert fleet.counts() == {"1": len(IDS)}
    fleet.loader.faults.clear()
    await rollout
    assert fleet.counts() == {"2": len(IDS)}


async def test_changes_that_make_no_sense_are_refused(fleet: Fleet) -> None:
    rollouts = fleet.rollouts
    with pytest.raises(InvalidInput, match="no version in service except 1"):
        await rollouts.start(ECHO, "1", 0.1)
    fleet.serve("2", "3")
    for version, error in (("9", NotFound), ("0", InvalidInput), ("two", InvalidInput)):
        with pytest.raises(error):
            await rollouts.start(ECHO, version, 0.1)
        with pytest.raises(error):
            await rollouts.pin(ECHO, version)
    for change in (rollouts.promote, rollouts.roll_back):
        with pytest.raises(InvalidInput, match="not being rolled out"):
            await change(ECHO)
        with pytest.raises(NotFound):
            await change("other")
    with pytest.raises(NotFound):
        await rollouts.follow_latest("other")
    await rollouts.start(ECHO, "2", 0.1)
    with pytest.raises(Conflict, match="promote it or roll it back first"):
        await rollouts.start(ECHO, "3", 0.1)
    await rollouts.roll_back(ECHO)
    with pytest.raises(InvalidInput, match="pinned to version"):
        await rollouts.start(ECHO, fleet.policy.base, 0.1)


async def test_change_that_cannot_be_recorded_is_not_made(fleet: Fleet) -> None:
    fleet.serve("2")
    fleet.store.fault = Unavailable("the disk is full")
    for change in (fleet.rollouts.start(ECHO, "2", 1.0), fleet.rollouts.pin(ECHO, "2")):
        with pytest.raises(Unavailable):
            await change
    assert fleet.policy == LATEST


# --- restarts -----------------------------------------------------------------------------------


async def test_policies_survive_a_restart(tmp_path: Path) -> None:
    policies = {
        ECHO: VersionPolicy(base="1", target="2", share=0.25),
        "pinned": VersionPolicy(base="7", reason="it crashes"),
    }
    await PolicyFile(tmp_path).write(policies)
    assert PolicyFile(tmp_path).read() == policies
    assert PolicyFile(tmp_path / "other").read() == {}


async def test_rollout_goes_on_after_a_restart() -> None:
    fleet = Fleet({ECHO: VersionPolicy(base="1", target="2", share=1.0)})
    fleet.serve("1")
    assert fleet.chosen() == "1"
    fleet.serve("2")
    await turns()
    assert fleet.loader.loads == ["echo/2"]
    assert fleet.chosen() == "2"
    await fleet.rollouts.close()


@pytest.mark.parametrize("text", ["{", "[]", '{"a": {"share": 2}}', '{"a": {"base": "0"}}'])
def test_damaged_policies_are_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "version-policies.json").write_text(text)
    with pytest.raises(Unavailable, match="Move it away"):
        PolicyFile(tmp_path).read()
