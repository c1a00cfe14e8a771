"""A gateway whose disk really becomes full, and has room again."""

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai.errors import Overloaded
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.waiting import wait_until

ENGINE = "onnx_identity"
QUERIES = 2_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the mount point of a disk of 24 MB, which is the gateway's state directory."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    state = tmp_path / "fleet" / "gateway"
    state.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(state)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not permitted")
    yield state
    subprocess.run(["umount", str(state)], check=True)


def fill(file: Path) -> None:
    """Write until the disk is full, in small steps that leave no page."""
    with file.open("ab", buffering=0) as filler:
        for size in (1 << 20, 4096):
            while True:
                try:
                    filler.write(bytes(size))
                except OSError:
                    break


def metric(fleet: LocalFleet, name: str) -> float:
    with urllib.request.urlopen(f"http://{fleet.http_address}/metrics", timeout=30) as response:
        [line] = [each for each in response.read().decode().splitlines() if each.startswith(name)]
    return float(line.split()[1])


def test_gateway_serves_requests_on_a_full_disk_and_resumes_jobs(
    disk: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    build(ENGINE, models)
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(models=models)
        fleet.wait_for_workers(1)
        with (
            synergai.SyncClient(fleet.address) as client,
            grpc.insecure_channel(fleet.address) as channel,
        ):
            stub = jobs_pb2_grpc.JobsStub(channel)
            spec = jobs_pb2.JobSpec(engine=ENGINE, queries=QUERIES)
            first = stub.Submit(jobs_pb2.SubmitRequest(spec=spec), timeout=30)
            [tensor] = client.engine(ENGINE).inputs
            query = {tensor.name: np.zeros(4, np.float32)}

            def submit() -> bool:
                """Submit a job that waits; return whether the disk was full."""
                try:
                    client.submit(ENGINE, queries=10, tenant="x" * 60)
                except Overloaded:
                    return True
                return False

            fill(disk / "filler")
            wait_until(submit)
            fill(disk / "filler")  # the reserve's room
            assert metric(fleet, "synergai_journal_writable") == 0
            wait_until(lambda: metric(fleet, "synergai_paused_jobs") or ended(stub, first.id))
            for _ in range(20):
                client.infer(ENGINE, query, deadline=30.0)
            with urllib.request.urlopen(f"http://{fleet.http_address}/healthz") as response:
                assert "disk is full" in response.read().decode()

            (disk / "filler").unlink()
            wait_until(lambda: not submit())
            wait_until(lambda: metric(fleet, "synergai_paused_jobs") == 0)
            wait_until(lambda: ended(stub, first.id))
            job = stub.Get(jobs_pb2.GetRequest(job_id=first.id), timeout=30)
            assert (job.state, job.queries_done) == (jobs_pb2.JOB_STATE_SUCCEEDED, QUERIES)
            assert fleet.gateway is not None
            assert fleet.gateway.poll() is None


def ended(stub: jobs_pb2_grpc.JobsStub, job_id: str) -> bool:
    job = stub.Get(jobs_pb2.GetRequest(job_id=job_id), timeout=30)
    return job.state >= jobs_pb2.JOB_STATE_SUCCEEDED
