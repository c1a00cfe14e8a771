"""Profiles of model files that workers serve no more, or serve again."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.calls.servicers.engines import of_variant, with_variants
from gateway.fleet.served_profiles import ServedProfiles
from gateway.fleet.variants import FleetVariants
from gateway.fleet.worker import CompletedQueries, ConnectedWorker
from gateway.monitoring.counts import EngineMetrics
from profiler.dictionary.files import add_to_dictionary, load_dictionary
from synergai.core.scheduling.events import ProfilesAdded, ProfilesRemoved
from synergai.domain import MAX_VARIANTS, Configuration, Engine, EngineName, Variant
from synergai.errors import InvalidInput, VersionNotFound
from synergai.jobs import JobSpec
from synergai.oip.inference_pb2 import InferParameter
from synergai.profiles.dictionary import MEASURED, OBSERVED, ConfigurationDictionary, ProfileEntry
from synergai.profiles.service import ProfileService
from tests.cores import new_entry
from tests.unit.gateway.conftest import ECHO, ENGINE, GatewayHarness, make_worker

OLD, NEW = "a" * 64, "b" * 64


def an_entry(digest: str = OLD, *, label: str = MEASURED, variant: str = "") -> ProfileEntry:
    return new_entry(
        ECHO, "test", 100.0, Configuration(1, variant=variant), digest=digest, label=label
    )


def of_file(digest: str) -> Engine:
    return replace(ENGINE, digest=digest)


class Setup:
    """A dictionary with some entries, and workers that serve the old file."""

    def __init__(
        self, path: Path, *entries: ProfileEntry, workers: Iterable[ConnectedWorker] = ()
    ) -> None:
        add_to_dictionary(path, entries)
        self.profiles = ProfileService(path)
        self.workers = list(workers) or [make_worker()]
        for worker in self.workers:
            worker.engines[ECHO] = of_file(OLD)
        self.served = ServedProfiles(self.profiles, lambda: self.workers)

    def change(self, engine: Engine, worker: int = 0) -> None:
        """Let a worker serve `engine`, and apply what follows as the core does."""
        changed = self.workers[worker]
        changed.engines[ECHO] = engine
        self.apply(self.served.engine_changed(changed, engine))

    def apply(self, events: Iterable[ProfilesAdded | ProfilesRemoved]) -> None:
        for event in events:
            for entry in event.entries:
                if isinstance(event, ProfilesAdded):
                    self.profiles.dictionary.put(entry)
                else:
                    self.profiles.dictionary.remove(entry)

    @property
    def used(self) -> list[ProfileEntry]:
        """The entries that the core uses."""
        return list(self.profiles.dictionary)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dictionary.db"


async def test_profile_stays_in_use_while_a_worker_of_its_class_serves_the_file(
    path: Path,
) -> None:
    setup = Setup(path, an_entry(), workers=[make_worker("w1"), make_worker("w2")])
    setup.change(of_file(NEW), worker=0)
    assert setup.used == [an_entry()]
    setup.change(of_file(NEW), worker=1)
    assert setup.used == []


async def test_observed_profile_ends_with_the_file_that_was_observed(path: Path) -> None:
    setup = Setup(path)
    observed = an_entry("", label=OBSERVED)
    setup.profiles.dictionary.put(observed)
    setup.served.learned(observed)
    setup.change(of_file(OLD))
    assert setup.used == [observed]
    setup.change(of_file(NEW))
    assert setup.used == list(setup.profiles.entries()) == []
    await setup.profiles.close()
    [stored] = load_dictionary(path)
    assert (stored.label, stored.digest) == (OBSERVED, OLD)


async def test_each_variant_has_profiles_of_its_own_file(path: Path) -> None:
    kept, ended = an_entry(OLD, variant="fp32"), an_entry(OLD, variant="int8")
    setup = Setup(path, kept, ended)
    variants = (Variant(name="fp32", digest=OLD), Variant(name="int8", digest=NEW))
    setup.change(replace(of_file(OLD), variants=variants))
    assert setup.used == [kept]
    both = (Variant(name="fp32", digest=OLD), Variant(name="int8", digest=OLD))
    setup.workers[0].configurations = (Configuration(1),)
    setup.change(replace(of_file(OLD), variants=both))
    assert sorted(setup.used, key=str) == sorted([kept, ended], key=str)


async def test_new_profile_of_another_file_is_set_aside_and_one_of_the_served_file_is_used(
    path: Path,
) -> None:
    setup = Setup(path)
    setup.change(of_file(NEW))
    setup.apply(setup.served.put([an_entry()]))
    assert setup.used == []
    setup.apply(setup.served.put([an_entry(NEW)]))
    assert setup.used == [an_entry(NEW)]
    assert not setup.profiles.set_aside


ACCURACIES = {"full": 0.88, "int8": 0.87, "p25": 0.0}
"""Declared; that of p25 is not known."""


FULL, INT8 = Variant(name="full", digest="f"), Variant(name="int8", digest="i")


@pytest.fixture
def family(engine: Engine) -> Engine:
    variants = (Variant(name=name, accuracy=value) for name, value in ACCURACIES.items())
    return replace(engine, variants=tuple(variants))


def worker_with(engine: Engine, worker_id: str = "w1") -> ConnectedWorker:
    worker = make_worker(worker_id)
    worker.engines[ECHO] = engine
    return worker


def serve(harness: GatewayHarness, engine: Engine) -> None:
    worker = worker_with(engine)
    harness.catalogue.update(worker.id, engine)
    harness.dispatcher.add_worker(worker)


def measured(variant: str, accuracy: float, samples: int = 1000) -> ProfileEntry:
    configuration = Configuration(1, variant=variant)
    return new_entry(
        ECHO, "test", 100.0, configuration, accuracy=accuracy, accuracy_samples=samples
    )


def fleet(engine: Engine, *entries: ProfileEntry) -> FleetVariants:
    workers = [worker_with(engine)]
    return FleetVariants(ConfigurationDictionary(entries), lambda: workers)


def test_measured_accuracy_goes_before_the_declared_one(family: Engine) -> None:
    variants = fleet(family, measured("int8", 0.86), measured("full", 0.0, samples=0))
    worker = worker_with(family)
    found = [variants.accuracy(ECHO, worker, Configuration(1, variant=name)) for name in ACCURACIES]
    assert found == [0.88, 0.86, 0.0]


def test_floor_is_checked_once_for_workers_that_are_alike(
    family: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [worker_with(family, f"w{number}") for number in range(20)]
    workers[-1].configurations = (Configuration(1), Configuration(2))
    variants = FleetVariants(ConfigurationDictionary([]), lambda: workers)
    asked: list[str] = []
    accuracy = variants.accuracy

    def counted(engine: EngineName, worker: ConnectedWorker, each: Configuration) -> float:
        asked.append(worker.id)
        return accuracy(engine, worker, each)

    monkeypatch.setattr(variants, "accuracy", counted)
    with pytest.raises(InvalidInput, match="full"):
        variants.check_floor(ECHO, 0.99)
    assert set(asked) == {"w0", "w19"}


def test_floor_beyond_all_variants_names_the_best(family: Engine) -> None:
    with pytest.raises(InvalidInput, match=r"accuracy of 0\.9: variant 1\.full has 0\.88"):
        fleet(family).check_floor(ECHO, 0.9)


@pytest.mark.parametrize("variant", ["p25", ""])
def test_unknown_accuracy_reaches_no_floor(family: Engine, engine: Engine, variant: str) -> None:
    with pytest.raises(InvalidInput, match="is not known"):
        fleet(family if variant else engine).check_floor(ECHO, 0.1, variant)


async def test_engine_without_variants_has_no_versions_with_a_dot(harness: GatewayHarness) -> None:
    harness.add_worker()
    with pytest.raises(VersionNotFound):
        harness.versions.find(ECHO, "1.int8")


async def test_job_keeps_its_variant_and_floor(harness: GatewayHarness, family: Engine) -> None:
    serve(harness, family)
    spec = JobSpec(engine=EngineName(ECHO), variant="int8", min_accuracy=0.5)
    assert harness.versions.of_job(spec) == replace(spec, version="1")
    with pytest.raises(VersionNotFound):
        harness.versions.of_job(replace(spec, variant="p50"))
    with pytest.raises(InvalidInput, match="reach"):
        harness.versions.of_job(replace(spec, min_accuracy=0.99))


async def test_request_below_its_floor_is_refused_at_once(
    harness: GatewayHarness, family: Engine
) -> None:
    serve(harness, family)
    floor = {"synergai_min_accuracy": InferParameter(string_param="0.95")}
    with pytest.raises(InvalidInput, match="reach"):
        harness.begin_request(parameters=floor)
    assert harness.metric("requests_total", engine=ECHO, outcome="invalid") == 1


async def test_pin_and_floor_reach_the_scheduler(harness: GatewayHarness, family: Engine) -> None:
    serve(harness, family)
    floor = {"synergai_min_accuracy": InferParameter(double_param=0.5)}
    request = harness.begin_request(model_version="1.int8", parameters=floor)
    assert (request.job.variant, request.job.min_accuracy) == ("int8", 0.5)
    request.abandon()


def test_versions_are_listed_each_before_its_variants(family: Engine) -> None:
    listed = with_variants([("1", ()), ("2", [each.name for each in family.variants])])
    assert listed == ["1", "2", "2.full", "2.int8", "2.p25"]
    assert of_variant(family, "int8").version == "1.int8"


def completed(variant: str) -> CompletedQueries:
    return CompletedQueries(engine=ECHO, queries=2, compute_s=0.5, batch=1, at=1.0, variant=variant)


async def test_queries_are_counted_by_variant(harness: GatewayHarness) -> None:
    harness.metrics.engines[ECHO].record(completed("int8"))
    assert harness.metric("variant_queries_total", engine=ECHO, variant="int8") == 2
    assert harness.metrics.engines[ECHO].variant("int8").statistics.compute.count == 2


def test_late_and_missing_answers_have_no_accuracy() -> None:
    metrics = EngineMetrics()
    for outcome in ("ok", "late", "rejected", "invalid", "cancelled"):
        metrics.requests.count(outcome)
    metrics.count_answer(0.9, 0.0, late=False)
    metrics.count_answer(0.8, 0.85, late=True)
    assert metrics.effective_accuracy == pytest.approx(0.3)
    assert metrics.floor_violations == 1


def test_number_of_counted_variants_is_bounded() -> None:
    metrics = EngineMetrics()
    for number in range(MAX_VARIANTS + 5):
        metrics.variant(f"v{number}")
    assert len(metrics.variants) == MAX_VARIANTS + 1
