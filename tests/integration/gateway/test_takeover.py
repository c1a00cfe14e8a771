"""A job survives the gateway that accepted it: standby, agent and client find each other."""

import contextlib
import signal
from pathlib import Path

import grpc
import pytest

from synergai.testing import LocalFleet
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from synergai.zoo.build import build
from tests.acceptance.crashes import find_errors
from tests.postgresql import PostgresqlServer
from tests.waiting import wait_until

ENGINE = "onnx_identity"
QUERIES = 300_000


def get(address: str, job_id: str) -> jobs_pb2.Job:
    """Return a job; an empty one while the gateway does not serve."""
    with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
        request = jobs_pb2.GetRequest(job_id=job_id)
        return jobs_pb2_grpc.JobsStub(channel).Get(request, timeout=2.0)
    return jobs_pb2.Job()


def queries_done(address: str, job_id: str) -> int:
    return get(address, job_id).queries_done


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_job_of_a_killed_or_hung_leader_is_completed_by_the_standby_with_no_query_recorded_twice(
    postgresql_server: PostgresqlServer, tmp_path: Path, number: signal.Signals
) -> None:
    postgresql_server.clear()
    models = tmp_path / "models"
    build(ENGINE, models)
    options = ["--journal", postgresql_server.url]
    with LocalFleet(tmp_path / "leader") as leader, LocalFleet(tmp_path / "standby") as standby:
        leader.start_gateway(options)
        hubs = f"{leader.hub_address},{standby.hub_address}"
        leader.start_agent("worker", models=models, options=["--gateway", hubs])
        leader.wait_for_workers(1)
        with grpc.insecure_channel(leader.address) as channel:
            request = jobs_pb2.SubmitRequest(
                spec=jobs_pb2.JobSpec(engine=ENGINE, queries=QUERIES), idempotency_key="key"
            )
            job_id = jobs_pb2_grpc.JobsStub(channel).Submit(request, timeout=30.0).id
        wait_until(lambda: queries_done(leader.address, job_id))
        assert queries_done(leader.address, job_id) < QUERIES
        assert leader.gateway is not None
        leader.gateway.send_signal(number)
        standby.start_gateway(options)
        wait_until(lambda: queries_done(standby.address, job_id) == QUERIES)
        wait_until(lambda: get(standby.address, job_id).state == jobs_pb2.JOB_STATE_SUCCEEDED)
        assert find_errors(get(standby.address, job_id), QUERIES) == []
        leader.gateway.send_signal(signal.SIGCONT)
        assert leader.gateway.wait(60) != 0
        standby.wait_for_workers(1)
        assert leader.log("worker").read_text().count("registered with") == 2
