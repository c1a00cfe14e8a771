"""Which workers may join, and what they may serve."""

import hashlib
from secrets import token_urlsafe

import pytest
from msgspec.structs import replace

from gateway.entry.access.table import AllowedWorkers
from gateway.entry.access.workers import JoiningWorker, WorkerRules
from synergai.domain import Engine, EngineName, Variant
from synergai.errors import PermissionDenied, Unauthenticated

DIGEST, OTHER = "a" * 64, "b" * 64
TOKEN, STRANGE = token_urlsafe(), token_urlsafe()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


NAMED = AllowedWorkers(id="edge-1", worker_class="nx", token_sha256=sha256(TOKEN))
CERTIFIED = AllowedWorkers(id="*", certificate="spiffe://example.org/{class}/{id}")


@pytest.fixture
def rules() -> WorkerRules:
    return WorkerRules()


def joining(
    worker_id: str = "edge-1", worker_class: str = "nx", token: str = "", certificate: str = ""
) -> JoiningWorker:
    return JoiningWorker(
        id=worker_id,
        worker_class=worker_class,
        certificate_names=frozenset({certificate} if certificate else ()),
        token_sha256=sha256(token) if token else "",
    )


def refused(rules: WorkerRules, worker: JoiningWorker, kind: type[Exception]) -> str:
    """Check that a worker is refused with an error of this kind; return the reason."""
    refusal = rules.refusal(worker)
    assert type(refusal) is kind
    return str(refusal)


def test_everyone_may_join_and_serve_everything_without_a_table(
    rules: WorkerRules, engine: Engine
) -> None:
    assert rules.refusal(joining()) is None
    assert rules.engine_fault(joining(), engine) == ""


def test_empty_or_removed_section_admits_no_worker(rules: WorkerRules) -> None:
    rules.set_rows(None)
    assert rules.refusal(joining()) is None
    rules.set_rows((NAMED,))
    for rows in ((), None):
        rules.set_rows(rows)
        reason = refused(rules, joining(token=TOKEN), PermissionDenied)
        assert "no row for worker 'edge-1' of class 'nx'" in reason


def test_token_is_proof_of_its_row_alone(rules: WorkerRules) -> None:
    rules.set_rows((NAMED, replace(NAMED, id="edge-2", token_sha256=sha256(STRANGE))))
    assert rules.refusal(joining(token=TOKEN)) is None
    reason = refused(rules, joining(), Unauthenticated)
    assert "needs a token: make one" in reason
    assert "synergai access token edge-1 --worker" in reason
    for impostor in (
        joining(token=STRANGE),
        joining("edge-2", token=TOKEN),
        # What the table has, which more people can read, is no token.
        joining(token=sha256(TOKEN)),
    ):
        assert "needs another token" in refused(rules, impostor, Unauthenticated)
    for stranger in (joining("cloud-1", token=TOKEN), joining(worker_class="agx", token=TOKEN)):
        assert "no row" in refused(rules, stranger, PermissionDenied)


def test_row_with_a_pattern_is_for_all_workers_that_share_its_token(rules: WorkerRules) -> None:
    rules.set_rows((replace(NAMED, id="edge-*"),))
    for worker_id in ("edge-1", "edge-2"):
        assert rules.refusal(joining(worker_id, token=TOKEN)) is None
    refused(rules, joining("cloud-1", token=TOKEN), PermissionDenied)
    refused(rules, joining(worker_class="agx", token=TOKEN), PermissionDenied)


@pytest.mark.parametrize("first", [True, False])
def test_id_with_a_row_of_its_own_is_not_proved_by_a_shared_token(
    rules: WorkerRules, first: bool
) -> None:
    shared = replace(NAMED, id="edge-*", worker_class="*", token_sha256=sha256(STRANGE))
    rules.set_rows((shared, NAMED) if first else (NAMED, shared))
    assert rules.refusal(joining("edge-2", token=STRANGE)) is None
    assert rules.refusal(joining(token=TOKEN)) is None
    refused(rules, joining(token=STRANGE), Unauthenticated)
    refused(rules, joining(worker_class="agx", token=STRANGE), PermissionDenied)


def test_token_is_replaced_by_a_second_row_for_a_while(rules: WorkerRules) -> None:
    later = replace(NAMED, token_sha256=sha256(STRANGE))
    rules.set_rows((NAMED, later))
    assert rules.refusal(joining(token=TOKEN)) is rules.refusal(joining(token=STRANGE)) is None
    rules.set_rows((later,))
    refused(rules, joining(token=TOKEN), Unauthenticated)
    assert rules.refusal(joining(token=STRANGE)) is None


def test_certificate_proves_id_and_class(rules: WorkerRules) -> None:
    rules.set_rows((CERTIFIED,))
    own = "spiffe://example.org/nx/edge-1"
    assert rules.refusal(joining(certificate=own)) is None
    for impostor in (
        joining("edge-2", certificate=own),
        joining(worker_class="agx", certificate=own),
        joining(certificate="edge-1"),
        joining(),
        joining(token=TOKEN),
    ):
        reason = refused(rules, impostor, Unauthenticated)
        assert "needs a certificate for 'spiffe://" in reason
        assert "token" not in reason


def test_rows_of_both_kinds_are_named_to_a_worker_that_has_neither_proof(
    rules: WorkerRules,
) -> None:
    rules.set_rows((NAMED, CERTIFIED))
    reason = refused(rules, joining(), Unauthenticated)
    assert "needs a token: " in reason
    assert "or a certificate for 'spiffe://" in reason


def test_proof_is_what_was_verified_not_what_was_presented(rules: WorkerRules) -> None:
    both = joining(token=TOKEN, certificate="spiffe://example.org/nx/edge-1")
    assert rules.proof(both) == "none", "everyone may join"
    rules.set_rows((replace(NAMED, token_sha256=sha256(STRANGE)),))
    assert rules.proof(both) == "none"
    rules.set_rows((NAMED,))
    assert rules.proof(both) == "token"
    rules.set_rows((CERTIFIED,))
    assert rules.proof(both) == "certificate"


def test_engines_and_digests_are_limited_by_the_row(rules: WorkerRules, engine: Engine) -> None:
    row = replace(CERTIFIED, engines=("ech*",), digests={"echo": frozenset({DIGEST})})
    rules.set_rows((row,))
    worker = joining(certificate="spiffe://example.org/nx/edge-1")
    listed, unlisted = replace(engine, digest=DIGEST), replace(engine, digest=OTHER)
    assert rules.engine_fault(worker, listed) == ""
    assert "its file, of SHA-256 bbbb" in rules.engine_fault(worker, unlisted)
    variants = (Variant(name="full", digest=DIGEST), Variant(name="half", digest=OTHER))
    assert "of SHA-256 bbbb" in rules.engine_fault(worker, replace(listed, variants=variants))
    other = replace(engine, name="resnet", digest=OTHER)
    assert "does not allow this worker" in rules.engine_fault(worker, other)
    pending = replace(engine, fault="it is being inspected", pending=True)
    assert rules.engine_fault(worker, pending) == ""


def test_worker_fetches_only_what_its_row_lets_it_serve(rules: WorkerRules) -> None:
    worker = joining(certificate="spiffe://example.org/nx/edge-1")
    assert rules.may_have(worker, EngineName("resnet"), OTHER)
    rules.set_rows((replace(CERTIFIED, engines=("ech*",), digests={"echo": frozenset({DIGEST})}),))
    assert rules.may_have(worker, EngineName("echo"), DIGEST)
    assert not rules.may_have(worker, EngineName("echo"), OTHER)
    assert rules.may_have(worker, EngineName("echo-2"), OTHER)
    assert not rules.may_have(worker, EngineName("resnet"), DIGEST)
