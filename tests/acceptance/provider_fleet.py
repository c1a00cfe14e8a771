"""Engines with an execution provider of ONNX Runtime, by a Python environment that has it.

It compares the answers with those of the CPU provider, measures both with the profiler, and lets a
gateway choose. Run by `test_providers_acceptance.py`, or by hand::

    VENV/bin/python tests/acceptance/provider_fleet.py CUDA --models models --directory /tmp/cuda

It needs an environment with ``onnxruntime-openvino`` or ``onnxruntime-gpu`` in place of
``onnxruntime``.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary, load_dictionary
from profiler.measuring.host_client import HostClient
from synergai.client.sync import SyncClient
from synergai.domain import Configuration, EngineName, Session, WorkerClass
from synergai.errors import EngineUnusable
from synergai.jobs import JobState
from synergai.models.directory import ModelDirectory
from synergai.models.samples import load_samples
from synergai.oip import inference_pb2 as oip
from synergai.profiles.dictionary import ProfileEntry
from synergai.wire.arrays import build_request, read_outputs
from tests.cores import new_entry
from worker_agent.providers import ProviderChoice

TOLERANCE: Final = 1e-3
SAMPLES: Final = 5
CLASS: Final = "provider"
CHOICE_WITHIN_S: Final = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("provider", choices=("CUDA", "OpenVINO", "TensorRT"))
    parser.add_argument("--models", type=Path, required=True, help="model directory")
    parser.add_argument("--directory", type=Path, required=True, help="folder for all else")
    parser.add_argument("--profiled", default="", help="engines to measure; all if empty")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    provider = ProviderChoice(options.provider)
    names = [
        EngineName(each.name)
        for each in ModelDirectory(options.models).engines()
        if each.backend == "onnxruntime"
    ]
    unusable: list[EngineName] = []
    for name in names:
        try:
            difference = compare(options.models, name, provider)
        except EngineUnusable as error:
            print(json.dumps({"engine": name, "unusable": str(error)}), flush=True)
            unusable.append(name)
            continue
        print(json.dumps({"engine": name, "difference": difference}), flush=True)
        if not difference <= TOLERANCE:
            return 1
    profiled = [EngineName(name) for name in options.profiled.split(",") if name]
    profiled = profiled or [name for name in names if name not in unusable]
    dictionary = options.directory / "dictionary.db"
    for record in profile(options.models, profiled, provider, dictionary, options.directory):
        print(json.dumps(record), flush=True)
    tempted = [entry for name in unusable for entry in tempting(name, on_device(provider))]
    add_to_dictionary(dictionary, tempted)
    for record in serve(
        options.models, profiled, unusable, provider, dictionary, options.directory
    ):
        print(json.dumps(record), flush=True)
    return 0


def on_device(provider: ProviderChoice) -> Configuration:
    """Return the configuration of a provider for one thread."""
    [configuration] = provider.configurations([Configuration(1)])
    return configuration


def compare(models: Path, name: EngineName, provider: ProviderChoice) -> float:
    """Return the largest difference of an engine's outputs on its samples to the CPU's."""
    cpu = answers(models, Session(name, Configuration(1)), None)
    device = answers(models, Session(name, on_device(provider)), provider)
    differences = [
        np.abs(found[output].astype(np.float64) - expected[output].astype(np.float64)).max()
        for found, expected in zip(device, cpu, strict=True)
        for output in expected
    ]
    return float(max(differences))


def answers(
    models: Path, session: Session, provider: ProviderChoice | None
) -> list[dict[str, NDArray[Any]]]:
    definition = ModelDirectory(models).get(session.engine)
    found = []
    with HostClient(models, session, provider=provider) as host:
        for sample in load_samples(definition, host.ready.inputs).inputs[:SAMPLES]:
            request = build_request(session.engine, sample)
            ended, data = host.query(request.SerializeToString())
            if ended.detail:
                raise SystemExit(f"{session.engine}: {ended.detail}")
            found.append(read_outputs(oip.ModelInferResponse.FromString(data)))
    return found


def profile(
    models: Path,
    names: list[EngineName],
    provider: ProviderChoice,
    dictionary: Path,
    directory: Path,
) -> list[dict[str, Any]]:
    command = (
        *(sys.executable, "-m", "synergai", "profile", "--providers", f"CPU,{provider}", "--json"),
        *("--models", str(models), "--engines", ",".join(names), "--threads", "1"),
        *("--min-duration", "2", "--worker-class", CLASS, "--dictionary", str(dictionary)),
        *("--output", str(directory / "profile")),
    )
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    keys = (
        "engine",
        "threads",
        "execution_provider",
        "qps",
        "label",
    )
    loads = ("backend_start_s", "model_load_s", "data_preparation_s")
    return [
        {**{key: record[key] for key in keys}, "t_pre_s": sum(record[key] for key in loads)}
        for record in json.loads(done.stdout)
    ]


def tempting(name: EngineName, configuration: Configuration) -> list[ProfileEntry]:
    """Return a profile by which a configuration is the best for an engine that it cannot run."""
    return [
        new_entry(name, CLASS, qps, each)
        for each, qps in ((Configuration(1), 10.0), (configuration, 1000.0))
    ]


def serve(
    models: Path,
    names: list[EngineName],
    unusable: list[EngineName],
    provider: ProviderChoice,
    dictionary: Path,
    directory: Path,
) -> list[dict[str, Any]]:
    """Let a gateway choose; return what it chose, by the measured profile and by its opposite.

    Engines that the provider cannot run have to run on the CPU, even if profiled faster elsewhere.
    """
    with LocalFleet(directory / "fleet") as fleet:
        fleet.start_gateway(("--dictionary", str(dictionary)))
        options = ("--providers", f"CPU,{provider.name}", "--threads", "1")
        fleet.start_agent("worker", models=models, worker_class=CLASS, options=options)
        fleet.wait_for_workers(1)
        with SyncClient(fleet.address) as client:
            on_cpu = [choose(client, name, Configuration(1), "failure") for name in unusable]
            [worker] = client.workers()
            known = {each.session for each in worker.unusable}
            if known != {Session(name, on_device(provider)) for name in unusable}:
                raise SystemExit(f"unusable at the gateway: {known}")
            measured = [
                choose(client, name, fastest(name, dictionary), "measured") for name in names
            ]
            entries = [entry for entry in load_dictionary(dictionary) if entry.engine in names]
            add_to_dictionary(dictionary, [opposite(entry, entries) for entry in entries])
            opposites = [
                choose(client, name, fastest(name, dictionary), "opposite") for name in names
            ]
            return [*on_cpu, *measured, *opposites]


def fastest(name: EngineName, dictionary: Path) -> Configuration:
    row = load_dictionary(dictionary).row(name, WorkerClass(CLASS))
    return max(row.values(), key=lambda entry: entry.qps).configuration


def choose(
    client: SyncClient, name: EngineName, expected: Configuration, by: str
) -> dict[str, Any]:
    """Submit jobs until one runs in the expected configuration, and return it."""
    deadline = time.monotonic() + CHOICE_WITHIN_S
    while True:
        status = client.submit(name, queries=5).wait()
        if status.state is not JobState.SUCCEEDED:
            raise SystemExit(f"{name}: {status.state.name}: {status.reason}")
        used = {execution.configuration for execution in status.executions}
        if used == {expected}:
            return {"engine": name, "by": by, "configuration": str(expected)}
        # The gateway looks for changes of the dictionary every second.
        if time.monotonic() > deadline:
            raise SystemExit(f"{name}: ran in {used} instead of {expected}")
        time.sleep(0.1)


def opposite(entry: ProfileEntry, entries: list[ProfileEntry]) -> ProfileEntry:
    """Return an entry with the QPS that the engine has with the other provider."""
    [other] = (
        each
        for each in entries
        if each.engine == entry.engine and each.configuration != entry.configuration
    )
    return replace(entry, qps=other.qps)


if __name__ == "__main__":
    sys.exit(main())
