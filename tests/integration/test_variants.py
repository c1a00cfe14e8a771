"""An engine with variants, profiled and served by real processes."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.dictionary.files import load_dictionary
from profiler.measuring.measurer import measure
from profiler.measuring.messages import MeasurementTask
from synergai.domain import Configuration, EngineName, Session, WorkerClass
from synergai.profiles.dictionary import BUILT_IN, ProfileEntry
from synergai.profiles.store import DictionaryStore
from tests.constant_variants import write_family

ENGINE = "family"
WORKER_CLASS = "variants"
LAYERS = {"large": 6, "medium": 2, "small": 0}
"""Layers of each variant; see `write_family`."""
LABELS = [0] * 12 + [1] * 6 + [2] * 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    write_family(models / ENGINE, LAYERS, LABELS)
    return models


@pytest.fixture(scope="module")
def dictionary(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dictionary with a short profile of all variants."""
    folder = tmp_path_factory.mktemp("profile")

    def entry(variant: str) -> ProfileEntry:
        session = Session(EngineName(ENGINE), Configuration(1, variant=variant))
        task = MeasurementTask(
            models=models,
            session=session,
            worker_class=WorkerClass(WORKER_CLASS),
            queries=20,
            min_duration_s=0.0,
            output=folder / variant,
            timer=BUILT_IN,
        )
        return measure(task).entry

    with ThreadPoolExecutor() as threads, DictionaryStore(folder / "d.db") as store:
        store.put_all(threads.map(entry, LAYERS))
    return folder / "d.db"


@pytest.fixture(scope="module")
def fleet(
    models: Path, dictionary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway(["--dictionary", str(dictionary)])
        fleet.start_agent(
            "w1", models=models, worker_class=WORKER_CLASS, options=["--threads", "1"]
        )
        fleet.wait_for_workers(1)
        yield fleet


def test_unmodified_tritonclient_pins_asks_for_accuracy_and_leaves_the_choice(
    fleet: LocalFleet,
) -> None:
    script = Path(__file__).with_name("variants_triton_script.py")
    done = subprocess.run(
        [sys.executable, str(script), fleet.address], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_accuracy_through_the_gateway_is_that_of_the_profile(
    fleet: LocalFleet, dictionary: Path
) -> None:
    profiled = {each.configuration.variant: each for each in load_dictionary(dictionary)}
    with synergai.SyncClient(fleet.address) as client:
        for answer, name in enumerate(LAYERS):
            job = client.submit(f"{ENGINE}/1.{name}", queries=len(LABELS))
            status = job.wait()
            assert status.accuracy == profiled[name].accuracy == LABELS.count(answer) / len(LABELS)
            assert {each.configuration.variant for each in status.executions} == {name}
