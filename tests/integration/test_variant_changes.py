"""Variants that change, differ or crash on one of two workers, while clients use the family."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Self

import numpy as np
import pytest

import synergai
from demo.local_fleet import LocalFleet
from synergai.domain import Configuration, Engine
from synergai.errors import InvalidInput
from synergai.profiles.store import DictionaryStore
from tests.constant_variants import write_definition, write_family
from tests.cores import new_entry
from tests.http1 import fetch, text_of
from tests.malformed_versions import MALFORMED_VERSIONS
from tests.waiting import wait_until

ENGINE = "family"
LAYERS = {"large": 2, "medium": 1, "small": 0}
ACCURACIES = {"large": 0.9, "medium": 0.8, "small": 0.7}
WORKERS = ("w1", "w2")
LOOK = "SYNERGAI_AGENT_MODELS_LOOK_S=0.2"

CRASHES = """\
import importlib.util, os, sys


class Finder:
    '''Makes ONNX Runtime crash when it loads one variant, or computes another, once told to.'''

    def find_spec(self, name, path, target=None):
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)

            class InferenceSession(module.InferenceSession):
                def __init__(self, path, *arguments, **options):
                    if os.path.basename(path) == "medium.onnx" and os.path.exists({marker!r}):
                        os.abort()
                    self._is_small = os.path.basename(path) == "small.onnx"
                    self._runs = 0
                    super().__init__(path, *arguments, **options)

                def run(self, *arguments, **options):
                    self._runs += 1  # of which loading it does the first ones
                    if self._is_small and self._runs > 3 and os.path.exists({computes!r}):
                        os.abort()
                    return super().run(*arguments, **options)

            module.InferenceSession = InferenceSession

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A gateway and two workers with the family, in a folder of its own each."""
    folder = tmp_path_factory.mktemp("fleet")
    with DictionaryStore(folder / "d.db") as store:
        store.put_all(
            new_entry(
                ENGINE,
                "local",
                qps,
                Configuration(1, variant=name),
                accuracy=ACCURACIES[name],
                accuracy_samples=1000,
            )
            for name, qps in zip(LAYERS, (1000.0, 2000.0, 4000.0), strict=True)
        )
    (folder / "patch").mkdir()
    (folder / "patch" / "sitecustomize.py").write_text(
        CRASHES.format(marker=str(folder / "crash"), computes=str(folder / "crash-computing"))
    )
    patched = os.pathsep.join(
        [str(folder / "patch"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with LocalFleet(folder / "state") as fleet:
        fleet.start_gateway(["--dictionary", str(folder / "d.db")])
        for name in WORKERS:
            write_family(folder / name / ENGINE, LAYERS)
            fleet.start_agent(
                name,
                models=folder / name,
                options=["--threads", "1"],
                prefix=["env", LOOK, *([f"PYTHONPATH={patched}"] if name == "w2" else [])],
            )
        fleet.wait_for_workers(2)
        yield fleet


@pytest.fixture(scope="module")
def client(fleet: LocalFleet) -> Iterator[synergai.SyncClient]:
    with synergai.SyncClient(fleet.address) as client:
        yield client


class Requests:
    """Requests of several threads, one after the other each, while it is a context.

    Attributes:
        answered: versions that answered.
        failures: errors of those that failed.
    """

    def __init__(self, address: str, versions: tuple[str, ...]) -> None:
        self._address = address
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(version,)) for version in versions
        ]
        self.answered: list[str] = []
        self.failures: list[Exception] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self) -> None:
        """Wait until some further requests are answered, or one fails."""
        enough = len(self.answered) + 50
        wait_until(lambda: len(self.answered) >= enough or bool(self.failures))

    def _run(self, version: str) -> None:
        with synergai.SyncClient(self._address) as client:
            while not self._stop.is_set():
                try:
                    result = client.infer(
                        f"{ENGINE}/{version}" if version else ENGINE,
                        {"x": np.zeros((1, 3), np.float32)},
                        deadline=30.0,
                    )
                except synergai.SynergaiError as error:
                    self.failures.append(error)
                    return
                self.answered.append(result.version)


def engines(client: synergai.SyncClient) -> dict[str, Engine]:
    return {
        worker.id: engine
        for worker in client.workers()
        for engine in worker.engines
        if engine.name == ENGINE
    }


def names(engine: Engine) -> list[str]:
    return [variant.name for variant in engine.variants]


def unusable(client: synergai.SyncClient, worker_id: str) -> set[str]:
    """Return the variants that a worker found that it cannot run."""
    return {
        each.session.configuration.variant
        for worker in client.workers()
        if worker.id == worker_id
        for each in worker.unusable
    }


def rest_status(fleet: LocalFleet, version: str) -> int:
    path = f"/v2/models/{ENGINE}/versions/{urllib.parse.quote(version, safe='')}/infer"
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}]}
    return fetch(fleet.http_address, path, json.dumps(body).encode()).status


def test_malformed_versions_are_invalid_in_every_interface(
    fleet: LocalFleet, client: synergai.SyncClient
) -> None:
    x = {"x": np.zeros((1, 3), np.float32)}
    for version in MALFORMED_VERSIONS:
        with pytest.raises(InvalidInput, match="is not a version"):
            client.infer(f"{ENGINE}/{version}", x, deadline=30.0)
        with pytest.raises(InvalidInput, match="is not a version"):
            client.submit(f"{ENGINE}/{version}", queries=1)
        assert rest_status(fleet, version) == 400
    engine = f"{ENGINE}/2."
    for command in (["infer", engine, "--input", "[[0, 0, 0]]"], ["submit", engine, "--queries=1"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "synergai",
                *command,
                f"--target={fleet.address}",
            ],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode != 0
        assert b"'2.' is not a version" in done.stderr


def test_variant_is_removed_from_one_worker_while_it_is_used(
    fleet: LocalFleet, client: synergai.SyncClient
) -> None:
    folder = fleet.directory.parent / "w1" / ENGINE
    job = client.submit(f"{ENGINE}/1.large", queries=100_000_000)  # until it is cancelled
    with Requests(fleet.address, ("", "1.large", "1.small")) as requests:
        requests.wait_for_more()
        write_definition(folder, ["medium", "small"])
        (folder / "large.onnx").unlink()
        wait_until(lambda: names(engines(client)["w1"]) == ["medium", "small"])
        requests.wait_for_more()
        assert names(engines(client)["w2"]) == list(LAYERS)
        done = job.status().queries_done
        wait_until(lambda: job.status().queries_done > done)
    assert not requests.failures
    assert {"1.large", "1.small"} <= set(requests.answered)
    status = job.cancel()
    assert (status.state.name, status.reason) == ("CANCELLED", "")
    assert {each.configuration.variant for each in status.executions} == {"large"}
    assert client.infer(f"{ENGINE}/1.large", {"x": np.zeros((1, 3), np.float32)}).version


def test_variant_that_crashes_on_one_worker_is_left_out_there(
    fleet: LocalFleet, client: synergai.SyncClient
) -> None:
    (fleet.directory.parent / "crash").touch()
    with Requests(fleet.address, ("", "1.medium", "1.small")) as requests:
        requests.wait_for_more()
        os.utime(fleet.directory.parent / "w2" / ENGINE / "medium.onnx")  # it is loaded again
        wait_until(lambda: unusable(client, "w2") == {"medium"})
        requests.wait_for_more()
    assert not requests.failures
    assert not unusable(client, "w1")
    with Requests(fleet.address, ("1.large",)) as requests:  # which only this worker has
        requests.wait_for_more()
    assert not requests.failures


def test_variant_that_crashes_while_it_computes_on_one_worker_pauses_there(
    fleet: LocalFleet, client: synergai.SyncClient
) -> None:
    before = unusable(client, "w2")
    marker = fleet.directory.parent / "crash-computing"
    with Requests(fleet.address, ("", "1.small", "1.small", "1.large")) as requests:
        requests.wait_for_more()
        marker.touch()
        job = client.submit(f"{ENGINE}/1.small", queries=200)
        wait_until(lambda: unusable(client, "w2") == before | {"small"} or bool(requests.failures))
        requests.wait_for_more()  # of the pinned ones too, which the other worker answers
        marker.unlink()
    assert not requests.failures
    assert {"1.small", "1.large"} <= set(requests.answered)
    assert "small" not in unusable(client, "w1")
    status = job.wait()
    assert (status.state.name, status.queries_done) == ("SUCCEEDED", 200)
    assert "crashed while it computed threads=1,variant=small" in fleet.log("gateway").read_text()
    metrics = text_of(fleet.http_address, "/metrics")
    assert re.search(r"^synergai_variant_crashes_total [1-9]", metrics, re.MULTILINE)
