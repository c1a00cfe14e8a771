"""A job survives the gateway that accepted it: standby, agent and client find each other."""

import asyncio
import contextlib
import signal
from pathlib import Path

import grpc
import pytest

from demo.local_fleet import LocalFleet
from gateway.fleet.versions import PolicyFile
from gateway.journal.store import JournalBroken
from gateway.server import Gateway
from profiler.dictionary.files import add_to_dictionary
from profiler.zoo.recipes import build
from synergai.client.client import Client
from synergai.errors import Unavailable
from synergai.jobs import JobState, JobStatus
from synergai.models.manifest import pack
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.acceptance.crashes import find_errors
from tests.integration.gateway.conftest import ECHO, PROFILE, FakeAgent, config_in
from tests.postgresql import PostgresqlServer
from tests.saved_state import ACCESS, TOKEN, WORKER
from tests.waiting import wait_until

ENGINE = "onnx_identity"
QUERIES = 100_000


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "model.onnx").write_bytes(b"model")
    (path / "engine.toml").write_text('title = "A model"\n')
    return path


async def keep_something(fleet: LocalFleet, path: Path, state: Path) -> None:
    """Store a version of an engine, a policy and a profile at a gateway."""
    package = pack(folder(path), "net", 1)
    add_to_dictionary(state / "dictionary.db", [PROFILE])
    async with Client(fleet.address) as client, FakeAgent(fleet.hub_address):
        data = package.manifest.encode()
        await client.push_engine("net", 1, data, package.paths, place=["left"])
        while not await client.dictionary():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        await registered(client)
        await client.pin(ECHO, "1")


async def registered(client: Client) -> None:
    while not await client.workers():  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.02)


async def kept(fleet: LocalFleet) -> tuple[object, ...]:
    """Return what a gateway has of that, once its store is loaded."""
    async with Client(fleet.address) as client, FakeAgent(fleet.hub_address):
        await registered(client)
        while not (stored := (await client.stored_engines()).engines):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        policy = await client.version_policy(ECHO)
        profiles = await client.dictionary()
    return [(each.engine, each.placement) for each in stored], policy.base, len(profiles)


@pytest.mark.parametrize("shared", ["--state", "--store"])
async def test_next_leader_has_the_store_policies_and_profiles_of_the_last_one(
    postgresql_server: PostgresqlServer, tmp_path: Path, shared: str
) -> None:
    postgresql_server.clear()
    options = ["--journal", postgresql_server.url, shared, str(tmp_path / "shared")]
    with LocalFleet(tmp_path / "leader") as leader, LocalFleet(tmp_path / "standby") as standby:
        await asyncio.to_thread(leader.start_gateway, options)
        state = tmp_path / ("shared" if shared == "--state" else "leader/gateway")
        await keep_something(leader, tmp_path / "net", state)
        before = await kept(leader)
        leader.kill("gateway")
        await asyncio.to_thread(standby.start_gateway, options)
        assert await kept(standby) == before
        assert before[1:] == ("1", 1)


async def test_deposed_leader_leaves_policies_alone(
    postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    postgresql_server.clear()
    config = config_in(tmp_path, journal=postgresql_server.url)
    with contextlib.suppress(JournalBroken):
        async with (
            Gateway(config) as gateway,
            Client(gateway.address, attempts=1) as client,
            FakeAgent(gateway.hub_address),
        ):
            await registered(client)
            postgresql_server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'synergai gateway'"
            )
            with pytest.raises(Unavailable, match="the session with PostgreSQL"):
                await client.pin(ECHO, "1")
    assert PolicyFile(config.state).read() == {}


def get(address: str, job_id: str) -> jobs_pb2.Job:
    """Return a job; an empty one while the gateway does not serve."""
    with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
        request = jobs_pb2.GetRequest(job_id=job_id)
        return jobs_pb2_grpc.JobsStub(channel).Get(request, timeout=2.0)
    return jobs_pb2.Job()


def queries_done(address: str, job_id: str) -> int:
    return get(address, job_id).queries_done


async def submit_and_wait(target: str, queries: int, submitted: "asyncio.Future[str]") -> JobStatus:
    """Submit a job, and wait for its end at whichever gateway leads."""
    async with Client(target) as client:
        job = await client.submit(ENGINE, queries=queries)
        submitted.set_result(job.id)
        return await job.wait()


async def test_client_waits_for_the_job_of_a_hung_leader_which_the_standby_completes_once(
    postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    postgresql_server.clear()
    models, table, token = tmp_path / "models", tmp_path / "access.toml", tmp_path / "token"
    build(ENGINE, models)
    table.write_text(ACCESS)
    token.write_text(TOKEN)
    options = ["--journal", postgresql_server.url, "--access", str(table)]
    with LocalFleet(tmp_path / "leader") as leader, LocalFleet(tmp_path / "standby") as standby:
        await asyncio.to_thread(leader.start_gateway, options)
        hubs = f"{leader.hub_address},{standby.hub_address}"
        of_worker = ["--gateway", hubs, "--token-file", str(token)]
        leader.start_agent(WORKER, models=models, options=of_worker)
        await asyncio.to_thread(leader.wait_for_workers, 1)
        submitted = asyncio.get_running_loop().create_future()
        target = f"{leader.address},{standby.address}"
        waiting = asyncio.create_task(submit_and_wait(target, QUERIES, submitted))
        job_id = await submitted
        await asyncio.to_thread(wait_until, lambda: queries_done(leader.address, job_id))
        assert queries_done(leader.address, job_id) < QUERIES
        assert leader.gateway is not None
        leader.gateway.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(standby.start_gateway, options)
        async with asyncio.timeout(30):
            status = await waiting
        assert status.state is JobState.SUCCEEDED
        assert find_errors(get(standby.address, job_id), QUERIES) == []
        leader.gateway.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(leader.gateway.wait, 60) != 0
        await asyncio.to_thread(standby.wait_for_workers, 1)
        assert leader.log(WORKER).read_text().count("registered with") == 2
