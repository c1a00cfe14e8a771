"""Engines that take a set time for a query."""

from collections.abc import Mapping
from pathlib import Path

from synergai.domain import EngineName
from synergai.profiles.store import DictionaryStore
from tests.cores import new_entry


def write_emulated_engines(
    directory: Path, query_s: Mapping[EngineName, float], worker_class: str = "local"
) -> tuple[Path, Path]:
    """Write a model directory with emulated engines and their dictionary; return both paths."""
    models, dictionary = directory / "models", directory / "dictionary.db"
    for engine, seconds in query_s.items():
        folder = models / engine
        folder.mkdir(parents=True)
        (folder / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"\n')
        (folder / "model.toml").write_text(
            f"[[configurations]]\nthreads = 1\nquery_s = {seconds}\nsetup_s = 0.1\n"
        )
    with DictionaryStore(dictionary) as store:
        store.put_all(
            new_entry(engine, worker_class, 1 / seconds, model_load_s=0.1)
            for engine, seconds in query_s.items()
        )
    return models, dictionary
