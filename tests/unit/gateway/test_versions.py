"""Which version of an engine a request or job gets."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import VersionPolicy, Versions
from synergai.domain import Engine, EngineName, TensorSpec, WorkerId
from synergai.errors import DeadlineExceeded, EngineUnusable, NotFound, Unavailable, VersionNotFound
from synergai.names import split_version, versioned
from tests.unit.gateway.conftest import ENGINE
from tests.waiting import turns

W1, W2 = WorkerId("w1"), WorkerId("w2")
ECHO = "echo"


def of(version: str, fault: str = "", *, pending: bool = False) -> Engine:
    return replace(
        ENGINE, name=versioned(ECHO, version), version=version, fault=fault, pending=pending
    )


class Fleet:
    """Versions of ``echo`` on the worker `W1`."""

    def __init__(self, *versions: str) -> None:
        self.catalogue = Catalogue()
        self.stored: set[int] = set()
        self.versions = Versions(self.catalogue, stored=lambda _: self.stored)
        for version in versions:
            self.catalogue.update(W1, of(version))

    def chosen(self, version: str = "") -> str:
        return split_version(self.versions.resolve(ECHO, version))[1]


def test_request_without_a_version_gets_the_highest_by_number() -> None:
    assert Fleet("9", "1", "10").chosen() == "10"


@pytest.mark.parametrize("version", ["3", "0", "01", "two", "9" * 10_000, "2/3"])
def test_unknown_version_is_not_found_and_the_error_names_the_others(version: str) -> None:
    with pytest.raises(VersionNotFound, match="it has 1, 2") as caught:
        Fleet("1", "2").chosen(version)
    assert len(str(caught.value)) < 200


def test_new_highest_version_takes_over_once_it_is_usable() -> None:
    fleet = Fleet("1")
    assert fleet.chosen() == "1"
    fleet.catalogue.update(W1, of("2", "it is being inspected", pending=True))
    assert fleet.chosen() == "1"
    fleet.catalogue.update(W1, of("2", "the file is truncated"))
    assert fleet.chosen() == "1"
    fleet.catalogue.update(W1, of("2"))
    assert fleet.chosen() == "2"
    fleet.catalogue.withdraw(W1, EngineName("echo/2"))
    assert fleet.chosen() == "1"


def test_version_out_of_service_is_not_chosen_but_can_be_asked_for() -> None:
    fleet = Fleet("1", "2")
    assert fleet.chosen() == "2"
    fleet.catalogue.unload("echo/2")
    assert fleet.chosen() == "1"
    with pytest.raises(EngineUnusable, match="is unloaded"):
        fleet.versions.find(ECHO, "2")
    fleet.catalogue.load(EngineName("echo/2"))
    assert fleet.chosen() == "2"


def test_operation_on_a_name_is_on_all_versions() -> None:
    versions = Fleet("1", "2").versions
    assert list(versions.selected("echo")) == ["echo", "echo/2"]
    assert list(versions.selected("echo/1")) == ["echo"]
    assert list(versions.selected("echo/2")) == ["echo/2"]
    for unknown in ("echo/3", "other"):
        with pytest.raises(NotFound):
            versions.selected(unknown)


def test_version_above_those_of_the_store_is_not_chosen() -> None:
    fleet = Fleet("1", "2", "999")
    assert fleet.chosen() == "999"
    fleet.stored = {2}
    fleet.versions.on_stored_changed()
    assert fleet.chosen() == "2"
    assert fleet.chosen("999") == "999"
    fleet.catalogue.withdraw(W1, EngineName("echo/2"))
    assert fleet.chosen() == "1"  # which answered before it was pushed
    fleet.catalogue.withdraw(W1, EngineName(ECHO))
    assert fleet.chosen() == "2"
    with pytest.raises(Unavailable, match="no worker that serves"):
        fleet.versions.find(ECHO)


def test_versions_of_the_store_go_before_others() -> None:
    fleet = Fleet("1", "2", "3")
    fleet.stored = {1, 3}
    assert fleet.chosen() == "3"
    fleet.catalogue.unload("echo/3")
    assert fleet.chosen() == "1"


def test_engine_of_which_no_version_counts_says_what_to_do() -> None:
    fleet = Fleet("998", "999")
    fleet.stored = {1}
    with pytest.raises(Unavailable, match=r"\(998, 999\), ask for one by its number, or pin it"):
        fleet.chosen()
    assert list(fleet.versions.selected(ECHO)) == ["echo/998", "echo/999"]
    fleet.versions.set_policy(ECHO, VersionPolicy(base="998"))
    assert fleet.chosen() == "998"


def with_other_outputs(version: str) -> Engine:
    return replace(of(version), outputs=(TensorSpec("scores", "FP32", (-1,)),))


def test_new_version_with_other_tensors_waits_for_a_rollout() -> None:
    fleet = Fleet("1", "2")
    fleet.versions.find(ECHO)
    fleet.catalogue.update(W2, with_other_outputs("3"))
    assert fleet.chosen() == "2"
    policy = fleet.versions.policy(ECHO)
    assert (policy.base, policy.target, policy.share) == ("2", "3", 0.0)
    assert "version 3 has other inputs or outputs than version 2" in policy.reason
    fleet.versions.find(ECHO, "3")
    fleet.catalogue.update(W1, of("2"))
    assert fleet.chosen() == "2", "it was only asked for by its number"
    fleet.versions.set_policy(ECHO, VersionPolicy())
    assert fleet.chosen() == "3", "an operator has chosen the highest version"
    fleet.catalogue.update(W2, with_other_outputs("3"))
    assert fleet.chosen() == "3"


def test_version_with_other_tensors_replaces_one_that_clients_did_not_use_or_that_is_gone() -> None:
    fleet = Fleet("1")
    fleet.catalogue.update(W2, with_other_outputs("2"))
    assert fleet.chosen() == "2"
    fleet = Fleet("1")
    fleet.versions.find(ECHO)
    fleet.catalogue.update(W1, of("1", "it was removed from the worker"))
    fleet.catalogue.update(W2, with_other_outputs("2"))
    assert fleet.chosen() == "2"


def test_forgotten_versions_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.catalogue.MAX_ABSENT", 1)
    fleet = Fleet("1", "2")
    fleet.catalogue.remove_worker(W1)
    assert fleet.catalogue.forget_surplus() == ["echo/2"]
    with pytest.raises(VersionNotFound, match="it has 1"):
        fleet.chosen("2")


async def test_request_waits_for_a_version_that_was_found_meanwhile() -> None:
    fleet = Fleet()
    fleet.catalogue.update(W1, of("1", "it is being inspected", pending=True))
    waiting = asyncio.create_task(fleet.versions.wait_inspected(ECHO))
    await asyncio.sleep(0)
    fleet.catalogue.update(W1, of("2", "it is being inspected", pending=True))
    fleet.catalogue.update(W1, of("1", "the file is truncated"))
    await turns(3)
    assert not waiting.done()
    with pytest.raises(DeadlineExceeded):
        await fleet.versions.wait_inspected(ECHO, timeout_s=0.0)
    fleet.catalogue.update(W1, of("2"))
    await waiting
