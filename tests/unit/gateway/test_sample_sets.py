"""Workers whose samples of an engine differ from those of the others."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.fleet.catalogue import Catalogue
from synergai.domain import Engine, WorkerId

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
ONE, TWO = "1" * 64, "2" * 64


def with_samples(engine: Engine, digest: str) -> Engine:
    return replace(engine, samples_digest=digest)


def test_a_worker_with_other_samples_than_most_is_used_with_a_warning(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, with_samples(engine, ONE))
    catalogue.update(W2, with_samples(engine, TWO))
    resolved = catalogue.update(W3, with_samples(engine, TWO))
    assert not any(each.fault for each in resolved.values())
    assert not resolved[W2].other_samples
    assert not resolved[W3].other_samples
    text = resolved[W1].other_samples
    assert "not those of w2" in text
    assert f"{ONE[:12]}… instead of {TWO[:12]}…" in text
    [differing] = catalogue.other_samples
    assert (differing.worker_id, differing.digest, differing.common) == (W1, ONE, TWO)


def test_of_two_workers_the_one_that_came_first_has_the_common_samples(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, with_samples(engine, ONE))
    resolved = catalogue.update(W2, with_samples(engine, TWO))
    assert not resolved[W1].other_samples
    assert resolved[W2].other_samples


def test_workers_without_a_known_digest_are_not_compared(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, with_samples(engine, ONE))
    resolved = catalogue.update(W2, engine)
    assert not any(each.other_samples for each in resolved.values())


def test_a_faulty_worker_is_not_compared_and_equal_samples_end_the_warning(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, with_samples(engine, ONE))
    catalogue.update(W2, replace(with_samples(engine, TWO), fault="truncated"))
    assert not list(catalogue.other_samples)
    catalogue.update(W2, with_samples(engine, TWO))
    assert list(catalogue.other_samples)
    resolved = catalogue.update(W2, with_samples(engine, ONE))
    assert not resolved[W2].other_samples
    assert not list(catalogue.other_samples)
