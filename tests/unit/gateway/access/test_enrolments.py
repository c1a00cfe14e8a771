"""Enrolment tokens and the secrets that workers exchange them for."""

import os
import threading
from pathlib import Path

import pytest

from gateway.entry.access.workers import ENROLMENTS_FILE, EnrolmentStore, sha256
from synergai.errors import NotFound, Unauthenticated

NOW = 1_000_000.0
HOUR = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> EnrolmentStore:
    return EnrolmentStore(tmp_path)


def issue(store: EnrolmentStore, worker_id: str = "", worker_class: str = "") -> str:
    return store.issue(worker_id, worker_class, NOW + HOUR, NOW)


def enrol(
    store: EnrolmentStore, token: str, worker_id: str = "w1", secret: str = "s1", now: float = NOW
) -> None:
    store.enrol(token, worker_id, "nx", sha256(secret), now)


def test_token_enrols_one_worker_once(store: EnrolmentStore) -> None:
    token = issue(store)
    enrol(store, token)
    [worker] = store.workers()
    assert (worker.id, worker.enrolled_at) == ("w1", NOW)
    assert worker.is_proved_by("nx", sha256("s1"))
    assert not worker.is_proved_by("nx", sha256("s2"))
    assert not worker.is_proved_by("agx", sha256("s1"))
    with pytest.raises(Unauthenticated, match="was used by worker 'w1'"):
        enrol(store, token, "w2")
    assert len(store.workers()) == 1


def test_neither_token_nor_secret_is_stored(store: EnrolmentStore, tmp_path: Path) -> None:
    token = issue(store)
    enrol(store, token, secret="the secret itself")
    content = (tmp_path / ENROLMENTS_FILE).read_bytes()
    assert token.encode() not in content
    assert b"the secret itself" not in content
    assert (tmp_path / ENROLMENTS_FILE).stat().st_mode & 0o077 == 0


def test_expired_and_unknown_tokens_are_refused(store: EnrolmentStore) -> None:
    token = issue(store)
    with pytest.raises(Unauthenticated, match="has expired"):
        enrol(store, token, now=NOW + HOUR)
    with pytest.raises(Unauthenticated, match="unknown to this gateway's --state; create a token"):
        enrol(store, "guessed")
    assert store.workers() == []


def test_token_is_bound_to_id_and_class(store: EnrolmentStore) -> None:
    with pytest.raises(Unauthenticated, match="is for worker 'w9'"):
        enrol(store, issue(store, worker_id="w9"))
    with pytest.raises(Unauthenticated, match="is for class 'agx'"):
        enrol(store, issue(store, worker_class="agx"))
    enrol(store, issue(store, "w1", "nx"))


@pytest.mark.parametrize("revoked", [False, True])
def test_enrolled_id_is_only_given_away_by_a_token_for_it(
    store: EnrolmentStore, *, revoked: bool
) -> None:
    enrol(store, issue(store))
    if revoked:
        store.revoke("w1", NOW)
    with pytest.raises(Unauthenticated, match="was enrolled before"):
        enrol(store, issue(store), secret="other")
    enrol(store, issue(store, worker_id="w1"), secret="new")
    [worker] = store.workers()
    assert worker.is_proved_by("nx", sha256("new"))
    assert not worker.is_proved_by("nx", sha256("s1"))


def test_revoked_worker_is_told_so_and_not_that_its_token_was_used(store: EnrolmentStore) -> None:
    token = issue(store)
    enrol(store, token)
    store.revoke("w1", NOW)
    with pytest.raises(Unauthenticated, match="worker 'w1' has been revoked; create a token"):
        enrol(store, token)


def test_revoked_secret_proves_nothing(store: EnrolmentStore) -> None:
    enrol(store, issue(store))
    store.revoke("w1", NOW + 1)
    store.revoke("w1", NOW + 2)
    [worker] = store.workers()
    assert worker.revoked_at == NOW + 1
    assert not worker.is_proved_by("nx", sha256("s1"))
    with pytest.raises(NotFound, match="no enrolled worker 'w2'"):
        store.revoke("w2", NOW)


def test_one_of_two_racing_agents_wins(store: EnrolmentStore, tmp_path: Path) -> None:
    token = issue(store)
    start = threading.Barrier(2)
    outcomes: list[str] = []

    def race(name: str) -> None:
        own = EnrolmentStore(tmp_path)
        start.wait()
        try:
            enrol(own, token, name, name)
        except Unauthenticated as error:
            outcomes.append(str(error))
        else:
            outcomes.append("enrolled")

    racers = [threading.Thread(target=race, args=(name,)) for name in ("w1", "w2")]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    [winner] = store.workers()
    outcomes.remove("enrolled")
    assert f"was used by worker {winner.id!r}" in outcomes[0]


def test_tokens_and_workers_survive_a_restart(tmp_path: Path) -> None:
    store = EnrolmentStore(tmp_path)
    used, unused = issue(store), issue(store)
    enrol(store, used)
    store = EnrolmentStore(tmp_path)
    enrol(store, unused, "w2")
    with pytest.raises(Unauthenticated, match="was used"):
        enrol(store, used, "w3")
    assert [worker.id for worker in store.workers()] == ["w1", "w2"]


def test_changes_of_other_processes_are_seen(store: EnrolmentStore, tmp_path: Path) -> None:
    enrol(store, issue(store))
    store.workers()
    assert not store.changed()
    command = EnrolmentStore(tmp_path)
    command.revoke("w1", NOW)
    assert store.changed()
    store.workers()
    assert not store.changed()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_created_by_root_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    issue(EnrolmentStore(tmp_path))
    assert (tmp_path / ENROLMENTS_FILE).stat().st_uid == 1234
