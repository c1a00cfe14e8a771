"""Kill, stop and cut off the leader of two gateways; check that nothing is lost or done twice.

    python tests/acceptance/takeovers.py --takeovers 200 --seed 1    # about half an hour

Two gateways share a database of PostgreSQL and the folder of inputs and results, and two agents
know both. Clients submit jobs under idempotency keys, also over an engine in stages, send requests,
and upload inputs, run jobs over them and read the results. One is the SDK's, which knows both
gateways. The database notes who writes in which epoch.

A cut is between a gateway and the database: nothing passes in either direction for a while. A
severed leader is in a network namespace whose only link is down: neither the database nor agents
nor clients reach it. That kind needs root:

    python tests/acceptance/takeovers.py --takeovers 20 --kinds sever

Agents without engines, which move as well, show what a large fleet costs:

    python tests/acceptance/takeovers.py --takeovers 5 --kinds kill --agents 200
"""

import argparse
import collections
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeVar

import grpc

import synergai
from demo.local_fleet import LocalFleet
from gateway.journal.data_store import DIRECTORY
from profiler.zoo.recipes import build
from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from synergai.v1 import fleet_pb2, fleet_pb2_grpc, jobs_pb2, jobs_pb2_grpc
from tests.acceptance import crashes
from tests.acceptance.bare_agents import bare_agents
from tests.acceptance.scripts import verdict
from tests.http1 import fetch
from tests.namespaces import Namespace, enter_namespace
from tests.postgresql import PostgresqlServer, find_programs, running_server
from tests.staged_engines import ENGINE as IN_STAGES
from tests.staged_engines import all_stages, build_stages
from tests.waiting import wait_until
from tests.wires import Wire

T = TypeVar("T")

ENGINE: Final = "onnx_identity"
AGENTS: Final = ("left", "right")
KINDS: Final = ("kill", "stop", "cut")
SEVER: Final = "sever"
LIMITS_S: Final = {"kill": 3.0, "stop": 5.0, "cut": 5.0, SEVER: 5.0}
"""Time in which the standby has to lead."""
AGENTS_S: Final = 5.0
"""Further time in which all agents have to be registered."""
UPLOADED: Final = 300
"""Inputs of an upload."""
_PIECE: Final = 10
"""Inputs of a message."""
_WAIT_S: Final = 120.0

WRITERS: Final = """
CREATE TABLE public.writers (
  epoch bigint, process integer, first timestamptz DEFAULT clock_timestamp(),
  last timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (epoch, process)
);
CREATE TABLE public.stale (assignment bigint, epoch bigint);
CREATE FUNCTION public.note_writer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.writers (epoch, process) VALUES (NEW.epoch, pg_backend_pid())
    ON CONFLICT (epoch, process) DO UPDATE SET last = clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER note_writer AFTER UPDATE ON synergai.gateway
  FOR EACH ROW EXECUTE FUNCTION public.note_writer();
CREATE FUNCTION public.note_stale() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.stale SELECT NEW.assignment, epoch FROM synergai.gateway
    WHERE epoch <> NEW.assignment >> 40;
  RETURN NEW;
END $$;
CREATE TRIGGER note_stale AFTER INSERT OR UPDATE ON synergai.executions
  FOR EACH ROW EXECUTE FUNCTION public.note_stale();
"""
OUT_OF_ORDER: Final = (
    "SELECT 'epoch ' || a.epoch || ' was written to after epoch ' || b.epoch || ' had begun' "
    "FROM public.writers a JOIN public.writers b ON b.epoch > a.epoch AND b.first < a.last "
    "UNION ALL SELECT 'epoch ' || epoch || ' has several writers' FROM public.writers "
    "GROUP BY epoch HAVING count(*) > 1 "
    "UNION ALL SELECT 'assignment ' || assignment || ' was recorded in epoch ' || epoch "
    "FROM public.stale"
)


class Member:
    def __init__(
        self,
        directory: Path,
        shared: Path,
        server: PostgresqlServer,
        namespace: Namespace | None = None,
    ) -> None:
        self.fleet = fleet = LocalFleet(directory)
        self._prefix: list[str] = []
        state = directory / "gateway"
        state.mkdir(parents=True)
        (state / DIRECTORY).symlink_to(shared)
        self.namespace = namespace
        self.wire = Wire(server.address)
        database = self.wire.address
        if namespace is not None:
            self._prefix = namespace.prefix
            fleet.address, fleet.hub_address, fleet.http_address = (
                address.replace("127.0.0.1", namespace.far)
                for address in (fleet.address, fleet.hub_address, fleet.http_address)
            )
            database = f"{namespace.near}:{server.port}"
        url = server.url.replace(server.address, database)
        self._options = [
            *("--listen", self.fleet.address),
            *("--hub", self.fleet.hub_address),
            *("--http", self.fleet.http_address),
            *("--state", str(state)),
            *("--journal", url),
            *("--drain-s", "1"),
            *(() if namespace is None else ("--insecure",)),
        ]
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.fleet.log("gateway").open("ab") as log:
            gateway = [sys.executable, "-m", "synergai", "gateway"]
            command = [*self._prefix, *gateway, *self._options]
            settings = {**os.environ, "SYNERGAI_GATEWAY_KEPT_JOBS": "10000000"}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=settings)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.wire.__exit__()

    def health(self) -> str:
        """Return the body of the health check; empty if nothing answers."""
        with contextlib.suppress(OSError, HTTPException):
            answer = fetch(self.fleet.http_address, "/healthz", timeout=0.5)
            return "leads" if answer.status == 200 else answer.body.decode()
        return ""

    def wait_for(self, state: str) -> float:
        """Wait until the gateway leads, or is a standby; return the seconds."""
        fault = f"{self.fleet.address} is no {state}"
        return wait_until(lambda: state in self.health(), _WAIT_S, fault)

    def workers(self) -> int:
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(self.fleet.address) as line:
            request = fleet_pb2.ListWorkersRequest()
            return len(fleet_pb2_grpc.FleetStub(line).ListWorkers(request, timeout=1.0).workers)
        return 0


@dataclass
class Outcome:
    """What was seen."""

    errors: list[str] = field(default_factory=list)
    takeovers: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )
    jobs: dict[str, int] = field(default_factory=dict)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)


class Client:
    """Repeats calls at one gateway after the other until they succeed."""

    def __init__(self, addresses: Sequence[str], outcome: Outcome, seed: int) -> None:
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
        self._channels = itertools.cycle(
            [grpc.insecure_channel(address, options=options) for address in addresses]
        )
        self._channel = next(self._channels)
        self.outcome = outcome
        self.rng = random.Random(seed)

    def call(self, kind: str, make: Callable[[grpc.Channel], T]) -> T:
        """Return what a call returns that succeeds; count the others."""
        while True:
            try:
                return make(self._channel)
            except grpc.RpcError:
                self.outcome.counts[f"{kind} repeated"] += 1
                self._channel = next(self._channels)
                time.sleep(0.05)

    def submit(self, spec: jobs_pb2.JobSpec) -> str:
        """Submit a job, sometimes twice, and remember it."""
        request = jobs_pb2.SubmitRequest(spec=spec, idempotency_key=str(uuid.uuid4()))

        def send(channel: grpc.Channel) -> str:
            return jobs_pb2_grpc.JobsStub(channel).Submit(request, timeout=3.0).id

        job_id = self.call("submissions", send)
        if self.rng.random() < 0.2 and (again := self.call("submissions", send)) != job_id:
            self.outcome.errors.append(f"one key has two jobs: {job_id} and {again}")
        self.outcome.jobs[job_id] = spec.queries
        self.outcome.counts["jobs"] += 1
        return job_id

    def infer(self, value: int) -> None:
        request = identity(value)

        def send(channel: grpc.Channel) -> oip.ModelInferResponse:
            stub = oip_grpc.GRPCInferenceServiceStub(channel)
            return stub.ModelInfer(request, timeout=3.0)

        response = self.call("requests", send)
        if list(response.raw_output_contents) != list(request.raw_input_contents):
            self.outcome.errors.append(f"request {value} has another answer")
        self.outcome.counts["requests"] += 1

    def run_upload(self) -> None:
        """Upload inputs slowly, run a job over them, and read its results as they come."""
        upload_id, stored = str(uuid.uuid4()), 0

        def send(channel: grpc.Channel) -> None:
            nonlocal stored
            stub = jobs_pb2_grpc.JobsStub(channel)
            for receipt in stub.Upload(self._messages(upload_id, stored), timeout=30.0):
                if receipt.stored < stored:
                    self.outcome.errors.append(
                        f"upload {upload_id}: {stored} inputs were acknowledged, then "
                        f"{receipt.stored}"
                    )
                stored = max(stored, receipt.stored)

        while stored < UPLOADED:
            self.call("uploads", send)
        job_id = self.submit(jobs_pb2.JobSpec(engine=ENGINE, queries=UPLOADED, upload_id=upload_id))
        found: dict[int, jobs_pb2.JobResult] = {}
        cursor = 0

        def read(channel: grpc.Channel) -> None:
            nonlocal cursor
            request = jobs_pb2.ResultsRequest(job_id=job_id, cursor=cursor, follow=True)
            for batch in jobs_pb2_grpc.JobsStub(channel).Results(request, timeout=10.0):
                cursor = batch.cursor
                for result in batch.results:
                    if result.index in found:
                        self.outcome.errors.append(f"{job_id}: two results of {result.index}")
                    found[result.index] = result

        while cursor < UPLOADED:
            self.call("reads", read)
        for index, result in found.items():
            response = oip.ModelInferResponse.FromString(result.response)
            if list(response.raw_output_contents) != list(identity(index).raw_input_contents):
                self.outcome.errors.append(f"{job_id}: result {index} is wrong: {result.error}")
        self.outcome.counts["uploads"] += 1

    def _messages(self, upload_id: str, first: int) -> Iterator[jobs_pb2.UploadRequest]:
        yield jobs_pb2.UploadRequest(upload_id=upload_id)
        for begin in range(first, UPLOADED, _PIECE):
            message = jobs_pb2.UploadRequest(first=begin)
            for index in range(begin, min(begin + _PIECE, UPLOADED)):
                message.inputs.add(name=str(index), request=identity(index).SerializeToString())
            yield message
            time.sleep(self.rng.uniform(0.0, 0.1))


def wait_for_job(client: synergai.SyncClient, outcome: Outcome) -> None:
    """Submit a job with the SDK and wait for its end, whichever gateway leads meanwhile."""
    job = client.submit(ENGINE, queries=500)
    outcome.jobs[job.id] = 500
    status = job.wait()
    if status.state is not synergai.JobState.SUCCEEDED:
        outcome.errors.append(f"{job.id} has ended as {status.state.name}: {status.reason}")
    outcome.counts["jobs waited for"] += 1


def identity(value: int) -> oip.ModelInferRequest:
    """Return a request whose response is equal to its input."""
    request = oip.ModelInferRequest(model_name=ENGINE)
    request.inputs.add(name=INPUT.name, datatype=INPUT.datatype, shape=[1])
    request.raw_input_contents.append(value.to_bytes(4, "little"))
    return request


INPUT = oip.ModelMetadataResponse.TensorMetadata()
"""Input of the engine, once the gateway has described it."""


def repeat(ended: threading.Event, outcome: Outcome, action: Callable[[], object]) -> None:
    """Act again and again until the end; a failure is an error."""
    try:
        while not ended.is_set():
            action()
            time.sleep(0.01)
    except Exception as error:  # noqa: BLE001 - reported at the end
        outcome.errors.append(f"a client failed: {error!r}")


def take_over(
    leader: Member, standby: Member, kind: str, agents: int, rng: random.Random
) -> tuple[float, ...]:
    """Disturb the leader; return the seconds until the standby led, and until it had the agents."""
    match kind:
        case "kill":
            leader.process.kill()
        case "stop":
            leader.process.send_signal(signal.SIGSTOP)
        case "cut":
            leader.wire.cut()
        case "sever" if leader.namespace is not None:
            leader.namespace.cut()
    led_s = wait_until(lambda: standby.health() == "leads", _WAIT_S, f"no takeover after a {kind}")
    agents_s = wait_until(lambda: standby.workers() == agents, _WAIT_S, f"no agents after a {kind}")
    time.sleep(rng.uniform(0.0, 2.0))
    if kind == "stop":
        leader.process.send_signal(signal.SIGCONT)
    leader.wire.mend()
    if leader.namespace is not None:
        leader.namespace.mend()
    with contextlib.suppress(subprocess.TimeoutExpired):
        leader.process.wait(30)
    if leader.process.poll() is None:
        raise TimeoutError(f"the old leader did not stop after a {kind}")
    leader.start()
    leader.wait_for("standby")
    return led_s, agents_s


def verify(client: Client) -> None:
    """Wait for the end of all acknowledged jobs, and check what is recorded of each."""
    deadline = time.monotonic() + 10 * _WAIT_S
    for job_id, queries in client.outcome.jobs.items():

        def get(channel: grpc.Channel, job_id: str = job_id) -> jobs_pb2.Job | None:
            try:
                request = jobs_pb2.GetRequest(job_id=job_id)
                return jobs_pb2_grpc.JobsStub(channel).Get(request, timeout=5.0)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return None
                raise

        while (job := client.call("gets", get)) is not None and time.monotonic() < deadline:
            if job.state >= jobs_pb2.JOB_STATE_SUCCEEDED:
                break
            time.sleep(0.05)
        lost = [f"{job_id} is lost"]
        client.outcome.errors += lost if job is None else crashes.find_errors(job, queries)


def run(takeovers: int, seed: int, directory: Path, kinds: Sequence[str], bare: int) -> list[str]:
    """Run the test and print its figures; return the errors."""
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed: neither pg_ctl nor /usr/lib/postgresql")
    build(ENGINE, directory / "models")
    all_stages(build_stages(directory / "stages"), directory / "models")
    (directory / "shared").mkdir()
    outcome, rng, ended = Outcome(), random.Random(seed), threading.Event()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(programs))
        namespaces: list[Namespace | None] = [None, None]
        if SEVER in kinds:
            server.listen_everywhere()
            namespaces = [stack.enter_context(Namespace(number)) for number in range(2)]
        shared = directory / "shared"
        members = [
            Member(directory / name, shared, server, namespace)
            for name, namespace in zip("ab", namespaces, strict=True)
        ]
        for member in members:
            stack.callback(member.stop)
        leader, standby = members
        leader.start()
        leader.wait_for("leads")
        server.execute(WRITERS)
        standby.start()
        standby.wait_for("standby")
        fleet = stack.enter_context(LocalFleet(directory / "agents"))
        hubs = ",".join(member.fleet.hub_address for member in members)
        for name in AGENTS:
            options = ["--threads", "1", "--gateway", hubs]
            fleet.start_agent(name, models=directory / "models", options=options)
        if bare:
            stack.enter_context(bare_agents(bare, hubs))
        agents = len(AGENTS) + bare
        fault = f"not all of {agents} agents are registered"
        wait_until(lambda: leader.workers() == agents, _WAIT_S, fault)
        addresses = [member.fleet.address for member in members]
        clients = [Client(addresses, outcome, seed + number) for number in range(5)]
        metadata = oip.ModelMetadataRequest(name=ENGINE)
        INPUT.CopyFrom(
            clients[0]
            .call(
                "metadata",
                lambda channel: oip_grpc.GRPCInferenceServiceStub(channel).ModelMetadata(metadata),
            )
            .inputs[0]
        )

        def submit(client: Client, engine: str, *queries: int) -> None:
            spec = jobs_pb2.JobSpec(engine=engine, queries=client.rng.choice(queries))
            client.submit(spec)
            time.sleep(0.1)

        sdk = stack.enter_context(synergai.SyncClient(",".join(addresses)))

        actions: list[Callable[[], object]] = [
            lambda: submit(clients[0], ENGINE, 1, 5, 50, 2000),
            lambda: submit(clients[1], IN_STAGES, 1, 5, 50),
            lambda: wait_for_job(sdk, outcome),
            clients[2].run_upload,
            clients[3].run_upload,
            lambda: clients[4].infer(rng.randrange(1 << 23)),
        ]
        threads = [
            threading.Thread(target=repeat, args=(ended, outcome, action), daemon=True)
            for action in actions
        ]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        for number in range(takeovers):
            time.sleep(rng.expovariate(1.0))
            kind = rng.choice(kinds)
            led_s, agents_s = take_over(leader, standby, kind, agents, rng)
            outcome.takeovers[kind].append((led_s, agents_s))
            if led_s > LIMITS_S[kind]:
                outcome.errors.append(f"takeover {number} after a {kind} took {led_s:.1f} s")
            if agents_s > AGENTS_S:
                outcome.errors.append(f"agents needed {agents_s:.1f} s after a {kind}")
            leader, standby = standby, leader
            print(f"{number + 1} {kind}: {led_s:.2f} s, agents {agents_s:.2f} s", flush=True)
        ended.set()
        for thread in threads:
            thread.join(_WAIT_S)
        disturbed_s = time.monotonic() - began
        verify(clients[0])
        outcome.errors += server.rows(OUT_OF_ORDER)
    for kind, each in sorted(outcome.takeovers.items()):
        for what, seconds in zip(("leader", "agents"), zip(*each, strict=True), strict=True):
            print(
                f"{kind:>5} {len(each):>4} {what}: median {statistics.median(seconds):.2f} s, "
                f"longest {max(seconds):.2f} s"
            )
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(outcome.counts.items()))
    print(f"{disturbed_s:.0f} s; {counts}")
    return outcome.errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--takeovers", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, SEVER), default=KINDS)
    parser.add_argument("--agents", type=int, default=0, help="further agents, without engines")
    parser.add_argument("--directory", type=Path, help="keep state and logs in this directory")
    options = parser.parse_args()
    if SEVER in options.kinds:
        enter_namespace()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        found = run(options.takeovers, options.seed, directory, options.kinds, options.agents)
    return verdict(found, f"{options.takeovers} takeovers: ")


if __name__ == "__main__":
    sys.exit(main())
