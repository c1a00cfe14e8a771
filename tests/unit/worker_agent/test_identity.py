"""The secret and the enrolment token that an agent presents."""

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from worker_agent.hub_client.identity import NO_CREDENTIALS, SECRET_FILE, WorkerIdentity


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def test_worker_without_a_token_has_no_credentials(tmp_path: Path) -> None:
    assert WorkerIdentity(tmp_path).read() == NO_CREDENTIALS
    assert list(tmp_path.iterdir()) == []


def test_secret_is_stored_privately_before_the_token_is_presented(
    tmp_path: Path, token_file: Path
) -> None:
    secret, token = WorkerIdentity(tmp_path, token_file).read()
    assert token == "first"
    assert len(secret) >= 32
    path = tmp_path / SECRET_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret in path.read_text()
    assert token not in path.read_text()


def test_agent_that_restarts_before_the_reply_presents_the_same_secret_and_token(
    tmp_path: Path, token_file: Path
) -> None:
    first = WorkerIdentity(tmp_path, token_file).read()
    assert WorkerIdentity(tmp_path, token_file).read() == first
    assert WorkerIdentity(tmp_path, token="first").read() == first


def test_secret_is_enough_once_the_token_is_gone(tmp_path: Path, token_file: Path) -> None:
    secret, _ = WorkerIdentity(tmp_path, token_file).read()
    token_file.unlink()
    assert WorkerIdentity(tmp_path, token_file).read() == (secret, "")


def test_new_token_replaces_the_secret_only_once_the_old_one_is_refused(
    tmp_path: Path, token_file: Path
) -> None:
    identity = WorkerIdentity(tmp_path, token_file)
    secret, _ = identity.read()
    identity.refused()
    assert identity.read() == (secret, "first")
    token_file.write_text("second")
    assert identity.read() == (secret, "")
    identity.refused()
    renewed = identity.read()
    assert renewed.token == "second"
    assert renewed.secret != secret


def test_token_that_is_not_valid_leaves_the_secret_in_use(tmp_path: Path, token_file: Path) -> None:
    identity = WorkerIdentity(tmp_path, token_file)
    secret, _ = identity.read()
    token_file.write_text("not valid")
    identity.refused()
    candidate = identity.read()
    assert candidate.token == "not valid"
    identity.refused()
    assert identity.read() == (secret, "")
    assert WorkerIdentity(tmp_path, token_file).read() == (secret, ""), "after a restart"
    identity.refused()
    assert identity.read() == candidate, "a lost reply costs nothing"


def test_accepted_secret_replaces_the_old_one(tmp_path: Path, token_file: Path) -> None:
    identity = WorkerIdentity(tmp_path, token_file)
    identity.read()
    identity.accepted()
    token_file.write_text("second")
    identity.refused()
    renewed = identity.read()
    identity.accepted()
    token_file.unlink()
    assert identity.read() == (renewed.secret, "")
    assert WorkerIdentity(tmp_path, token_file).read() == (renewed.secret, "")


def test_token_is_checked_before_anything_starts(tmp_path: Path, token_file: Path) -> None:
    WorkerIdentity(tmp_path).check()
    WorkerIdentity(tmp_path, token_file).check()
    assert not (tmp_path / SECRET_FILE).exists()
    with pytest.raises(InvalidInput, match=r"--enrolment-token-file .*: No such file"):
        WorkerIdentity(tmp_path, tmp_path / "missing").check()
    token_file.write_text("\n")
    with pytest.raises(InvalidInput, match=r"--enrolment-token-file .* is empty"):
        WorkerIdentity(tmp_path, token_file).check()
    token_file.write_text("first")
    WorkerIdentity(tmp_path, token_file).read()
    WorkerIdentity(tmp_path, tmp_path / "missing").check()
