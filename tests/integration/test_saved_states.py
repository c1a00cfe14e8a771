"""States that earlier releases have left behind."""

import tarfile
from pathlib import Path

import pytest

import synergai
from demo.local_fleet import LocalFleet
from tests.integration.conftest import journal_in_a_file
from tests.integration.test_versions import ENGINE
from tests.saved_state import FOLDER, INPUTS, QUERIES, start
from tests.waiting import wait_until


@journal_in_a_file
@pytest.mark.parametrize("saved", sorted(FOLDER.glob("*.tar.gz")), ids=lambda path: path.name)
def test_state_of_a_release_opens_with_its_worker_its_pin_and_its_jobs(
    saved: Path, tmp_path: Path
) -> None:
    with tarfile.open(saved) as archive:
        archive.extractall(tmp_path, filter="data")
    with LocalFleet(tmp_path) as fleet, synergai.SyncClient(fleet.address) as client:
        start(fleet)
        jobs = {status.spec.queries: status.id for status in client.jobs()}
        assert jobs.keys() == {QUERIES, INPUTS}
        for queries, job in jobs.items():
            status = client.job(job).wait()
            assert (status.state, status.queries_done) == (synergai.JobState.SUCCEEDED, queries)
        results = list(client.job(jobs[INPUTS]).results())
        assert sorted(index for index, _ in results) == list(range(INPUTS))
        # The pinned version, which multiplies by 1.
        assert {float(result["y"][0]) for _, result in results} == {1.0}
        wait_until(lambda: client.ready(f"{ENGINE}/2"))
        assert client.infer(ENGINE, {"x": [1.0]}, deadline=30.0).version == "1"
