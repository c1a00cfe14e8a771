"""``synergai gateway enroll`` and ``synergai gateway workers``."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app, parse_time
from gateway.entry.access.workers import EnrolmentStore, sha256
from gateway.journal.files import lock
from synergai.errors import InvalidInput, NotFound


def run(*arguments: str, state: Path) -> str:
    result = CliRunner().invoke(app, [*arguments, "--state", str(state)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_printed_token_enrols_the_worker_that_it_is_for(tmp_path: Path) -> None:
    os.close(lock(tmp_path))
    token = run("enroll", "--worker-id", "w1", "--ttl", "30m", state=tmp_path)
    assert run("workers", "list", state=tmp_path).startswith("no worker is enrolled")
    store = EnrolmentStore(tmp_path)
    store.enrol(token, "w1", "nx", sha256("secret"), 0.0)
    [listed] = json.loads(run("workers", "list", "--json", state=tmp_path))
    assert (listed["id"], listed["worker_class"], listed["revoked_at"]) == ("w1", "nx", "")
    run("workers", "revoke", "w1", state=tmp_path)
    [listed] = json.loads(run("workers", "list", "--json", state=tmp_path))
    assert listed["revoked_at"]
    assert "w1" in run("workers", "list", state=tmp_path)
    with pytest.raises(NotFound, match="no enrolled worker 'w2'"):
        run("workers", "revoke", "w2", state=tmp_path)


def test_token_is_only_made_for_a_directory_that_a_gateway_has_used(tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound, match="is no gateway's state directory"):
            run("enroll", state=state)
    assert not list(tmp_path.iterdir())


def test_token_says_for_which_gateway_it_is_and_whether_that_runs(tmp_path: Path) -> None:
    held = lock(tmp_path)
    said = CliRunner().invoke(app, ["enroll", "--state", str(tmp_path)]).stderr
    assert said.endswith(f"at the gateway of {tmp_path}.\n")
    os.close(held)
    said = CliRunner().invoke(app, ["enroll", "--state", str(tmp_path)]).stderr
    assert said.endswith(f"at the gateway of {tmp_path}, which is not running.\n")


@pytest.mark.parametrize("text", ["", "0h", "-1h", "1w", "nan", "inf", "forever"])
def test_invalid_validity_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="30m"):
        parse_time(text)
