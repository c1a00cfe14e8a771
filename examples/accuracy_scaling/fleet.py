"""Emulated workers of an engine with variants: real answers, in the time of slower machines.

The speed of each variant relative to the others is the one that was measured on this machine, in
batches: single small queries take the time of the calls around them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from examples.training import families
from profiler.dictionary.files import load_dictionary
from synergai.domain import WorkerClass
from synergai.errors import SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.profiles.store import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from demo.local_fleet import LocalFleet
    from synergai.domain import EngineName
    from synergai.profiles.dictionary import ProfileEntry

FAMILY: Final = "digits_family"
ENGINE: Final = families.engine_name(FAMILY)
LARGER: Final = families.engine_name("fashion")
"""Used instead if it is there: it is trained for some minutes."""
WORKERS: Final = 3
MOST_ACCURATE_S: Final = 0.06
"""Emulated duration of a query in the most accurate variant."""
EMULATED: Final = WorkerClass("emulated")
_LOAD_S: Final = 0.2


def profile(models: Path, engine: EngineName, directory: Path) -> list[ProfileEntry]:
    """Measure all variants on this machine; return the entries.

    Raises:
        SynergaiError: the profiler failed.
    """
    measured = directory / "measured.db"
    folder = directory / "measured" / engine
    shutil.copytree(models / engine, folder)
    definition = folder / "engine.toml"
    definition.write_text("max_batch = 16\n" + definition.read_text("utf-8"), "utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "synergai", "profile", "--models", str(folder.parent)),
            *("--threads", "1", "--power", "none"),
            *("--dictionary", str(measured), "--output", str(directory / "loadgen")),
            *("--queries", "200", "--min-duration", "0.2"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SynergaiError(f"synergai profile failed: {done.stderr.strip()}")
    return list(load_dictionary(measured))


def most_accurate(entries: Sequence[ProfileEntry]) -> ProfileEntry:
    """Return the entry of the most accurate variant, and of several the fastest."""
    return max(entries, key=lambda entry: (entry.accuracy, entry.qps))


def emulate(
    models: Path, engine: EngineName, measured: Sequence[ProfileEntry], directory: Path
) -> list[ProfileEntry]:
    """Write model directory and dictionary of the emulated workers; return the entries."""
    definition = ModelDirectory(models).get(engine)
    folder = directory / "models" / engine
    folder.mkdir(parents=True)
    shutil.copy(models / engine / "samples.npz", folder)
    measured = [replace(entry, qps=entry.batch_qps[-1], batch_qps=()) for entry in measured]
    measured.sort(key=lambda entry: entry.qps)
    scale = most_accurate(measured).qps * MOST_ACCURATE_S
    entries = []
    lines = ['backend = "emulated"']
    for entry in measured:
        name = entry.configuration.variant
        query_s = scale / entry.qps
        file = definition.of_variant(name).file
        shutil.copy(file, folder)
        (folder / f"{name}.toml").write_text(
            f'model = "{file.name}"\n\n[[configurations]]\nthreads = 1\n'
            f"query_s = {query_s!r}\nsetup_s = {_LOAD_S}\n"
        )
        lines += ["", "[[variants]]", f'name = "{name}"', f'file = "{name}.toml"']
        entries.append(
            replace(
                entry,
                worker_class=EMULATED,
                qps=1.0 / query_s,
                backend_start_s=0.0,
                model_load_s=_LOAD_S,
                data_preparation_s=0.0,
                latency_p50_s=query_s,
                latency_p90_s=query_s,
                latency_p99_s=query_s,
                label="emulated",
            )
        )
    (folder / "engine.toml").write_text("\n".join(lines) + "\n")
    with DictionaryStore(directory / "emulated.db") as store:
        store.put_all(entries)
    return entries


def start(fleet: LocalFleet, directory: Path) -> None:
    """Start a gateway and the emulated workers.

    Raises:
        Unavailable: one was not ready in time.
    """
    fleet.start_gateway(["--dictionary", str(directory / "emulated.db")])
    for number in range(WORKERS):
        fleet.start_agent(
            f"emulated-{number + 1}",
            models=directory / "models",
            worker_class=EMULATED,
            options=["--threads", "1"],
        )
    fleet.wait_for_workers(WORKERS)
