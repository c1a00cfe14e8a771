"""What callers may do with requests and jobs of engines and tenants."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.calls.requests.inference import Admitted
from gateway.calls.requests.parameters import InferenceCall, RequestId
from gateway.calls.servicers.fleet import explain
from gateway.entry.access.caller import ANONYMOUS, READERS, UNRESTRICTED, Caller, Grant, Role
from gateway.entry.access.methods import KNOWN, METHODS, PUBLIC, Permission, check_call
from gateway.grpc_server import UNSUPPORTED_METHODS
from synergai.core.explanations import Explanation
from synergai.core.routes.deployment import EngineDeployment
from synergai.core.routes.problem import Leg, Route
from synergai.domain import EngineName, JobId
from synergai.errors import NotFound, PermissionDenied, Unauthenticated, Unavailable
from synergai.jobs import JobSpec
from synergai.oip import inference_pb2 as oip
from synergai.wire.request_codec import RequestHeader
from synergai.wire.rpc import RawRequest
from tests.unit.gateway.conftest import GatewayHarness, raw_request

SPEC = JobSpec(engine=EngineName("echo"), queries=10)


def client(name: str, *roles: Role, engines: tuple[str, ...] = ("echo",), **scope: str) -> Caller:
    tenants = (scope["tenants"],) if "tenants" in scope else ()
    grant = Grant(to=(name,), roles=frozenset(roles), engines=engines, tenants=tenants)
    return Caller(name, name, (grant,))


def infer_request(engine: str = "echo", tenant: str = "") -> RawRequest[RequestHeader]:
    message = oip.ModelInferRequest(model_name=engine, raw_input_contents=[b"\0" * 4])
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    if tenant:
        message.parameters["synergai_tenant"].string_param = tenant
    return raw_request(message)


async def test_request_and_job_belong_to_the_callers_tenant(harness: GatewayHarness) -> None:
    harness.add_worker()
    camera = client("camera", Role.INFER, Role.SUBMIT)
    assert harness.begin(infer_request(), caller=camera).job.tenant == "camera"
    assert (await harness.jobs.submit(camera, SPEC)).spec.tenant == "camera"


async def test_request_for_another_tenant_is_refused_however_it_is_named(
    harness: GatewayHarness,
) -> None:
    harness.add_worker()
    camera = client("camera", Role.INFER)
    with pytest.raises(PermissionDenied, match="in tenant 'lab'"):
        harness.begin(infer_request(), caller=camera, tenant="lab")
    with pytest.raises(PermissionDenied, match="in tenant 'lab'"):
        harness.begin(infer_request(tenant="lab"), caller=camera)


@pytest.mark.parametrize("engine", ["bert", "missing"])
async def test_refusal_does_not_tell_whether_an_engine_exists(
    harness: GatewayHarness, engine: str
) -> None:
    harness.add_worker()
    with pytest.raises(PermissionDenied, match=f"'infer' for engine '{engine}'"):
        harness.begin(infer_request(engine), caller=client("camera", Role.INFER))


async def test_watch_ends_when_its_caller_is_revoked(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    owner = client("owner", Role.SUBMIT)
    job = await harness.jobs.submit(owner, SPEC)
    statuses = harness.jobs.watch(owner, job.id)
    await anext(statuses)
    owner.revoke("'owner' was removed from the access table")
    [assignment] = harness.assignments(worker)
    harness.complete(worker, assignment, done=assignment.count)
    await harness.flush_journal()
    with pytest.raises(Unauthenticated, match="removed from the access table"):
        await anext(statuses)


def explanation(
    harness: GatewayHarness,
    caller: Caller,
    name: str,
    deployments: tuple[EngineDeployment, ...] = (),
) -> Explanation:
    return explain(caller, harness.dispatcher.core, deployments, name, harness.clock.now())


async def test_request_that_was_refused_before_it_began_has_an_explanation(
    harness: GatewayHarness,
) -> None:
    request_id = RequestId(JobId("r1-7"), "mine")
    fault = Unavailable("connected workers lack stages of engine 'net'")
    call = InferenceCall(UNRESTRICTED, infer_request("net"), None, "", request_id)
    harness.inference.count_rejected(Admitted(call, EngineName("net"), "camera"), fault)
    found = explanation(harness, UNRESTRICTED, "r1-7")
    assert (found.engine, found.client_id) == ("net", "mine")
    assert "lack stages" in found.reason


@pytest.mark.parametrize("asked", ["net", "net/2", "net.s0-4/2"])
@pytest.mark.parametrize(
    ("deployment", "told"),
    [
        (
            EngineDeployment(
                engine=EngineName("net/2"),
                state="failed",
                fault="the stages need more memory than the workers have",
            ),
            "Deployment of net/2: failed; the stages need more memory than the workers have.",
        ),
        (
            EngineDeployment(
                engine=EngineName("net/2"),
                state="placing",
                deployed=(Route((Leg("a", 0, 4), Leg("b", 4, 9))),),
                wanted=(Route((Leg("c", 0, 9),)),),
                reason="slow",
            ),
            "Deployment of net/2: placing; s0-4 on a, s4-9 on b; wanted: s0-9 on c; slow.",
        ),
    ],
)
async def test_explanation_tells_how_the_engine_is_deployed_in_stages(
    harness: GatewayHarness, asked: str, deployment: EngineDeployment, told: str
) -> None:
    call = InferenceCall(UNRESTRICTED, infer_request("net"), None, "", RequestId(JobId("r1-7"), ""))
    refused = Admitted(call, EngineName(asked), "")
    harness.inference.count_rejected(refused, Unavailable("no worker has it"))
    other = replace(deployment, engine=EngineName("other"))
    found = explanation(harness, UNRESTRICTED, "r1-7", (other, deployment))
    assert found.sentences[-1] == told
    assert not any("other" in sentence for sentence in found.sentences)
    user = client("camera", Role.INFER, engines=("net*",), tenants="*")
    assert told not in explanation(harness, user, "r1-7", (deployment,)).sentences


async def test_explanation_is_for_the_tenant_and_hides_the_work_of_others(
    harness: GatewayHarness,
) -> None:
    harness.add_worker()
    camera, lab = client("camera", Role.INFER), client("lab", Role.INFER)
    harness.begin(infer_request(), caller=lab)
    request = harness.begin(infer_request(), 60.0, camera)
    name = request.job.id
    assert explanation(harness, UNRESTRICTED, name).tenant == "camera"
    [mine] = explanation(harness, camera, name).ahead
    assert (mine.worker, mine.engine, mine.tenant) == ("w1", "", "")
    [seen] = explanation(harness, client("eye", Role.OBSERVE, tenants="*"), name).ahead
    assert (seen.engine, seen.tenant) == ("echo", "lab")
    with pytest.raises(NotFound, match="nothing is known of"):
        explanation(harness, lab, name)


NOBODY = Caller("nobody", "nobody", ())


def anonymous(*roles: Role) -> Caller:
    return Caller(ANONYMOUS, "", (Grant(to=(ANONYMOUS,), roles=frozenset(roles)),))


def test_call_outside_the_table_is_refused_to_every_caller() -> None:
    everything = Caller("a", "a", (Grant(to=("a",), roles=frozenset(Role), tenants=("*",)),))
    with pytest.raises(PermissionDenied):
        check_call(None, everything)
    with pytest.raises(Unauthenticated):
        check_call(None, anonymous())


def test_page_is_for_every_known_caller_and_for_anonymous_ones_with_a_grant() -> None:
    check_call(KNOWN, NOBODY)
    check_call(KNOWN, anonymous(Role.INFER))
    with pytest.raises(Unauthenticated):
        check_call(KNOWN, anonymous())
    check_call(PUBLIC, anonymous())


def test_document_lists_what_each_role_may_call() -> None:
    text = (Path(__file__).parents[3] / "docs" / "guide" / "security.md").read_text("utf-8")
    [section] = re.findall(r"^## Roles$(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    rows = {
        cells[0]: set(re.findall(r"`(?:[\w.]+\.)?(\w+)`", cells[1]))
        for cells in re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    }
    expected: dict[str, set[str]] = {}
    for method, permission in METHODS.items():
        if method in UNSUPPORTED_METHODS or "reflection" in method:
            continue
        for row in document_rows(permission):
            name = "Health" if "health" in method else method.rpartition("/")[2]
            expected.setdefault(row, set()).add(name)
    assert {row: rows[row] for row in expected} == expected


def document_rows(permission: Permission) -> list[str]:
    """Return the first cells of the rows of docs/guide/security.md that have a call."""
    if permission.public:
        return ["everyone"]
    if not permission.roles:
        return ["any known caller, or an anonymous one with any grant"]
    if permission.roles == READERS:
        return ["`infer`, `submit` or `observe`"]
    return [f"`{role}`" for role in permission.roles]
