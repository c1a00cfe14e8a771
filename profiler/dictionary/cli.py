"""``synergai dictionary``: show, change, import and export the configuration dictionary."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.options import DEFAULT_DICTIONARY, DEFAULT_MODELS, AsJson, Dictionary
from synergai.cli.output import (
    format_accuracy,
    format_age,
    format_joules,
    format_rate,
    format_seconds,
    format_watts,
    print_json,
    print_table,
)
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from profiler.dictionary.origins import EngineOrigins
    from synergai.profiles.dictionary import ProfileEntry

app: Final = typer.Typer(
    help="Show, import, export and delete entries of the configuration dictionary.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command(epilog="Example: [bold]synergai dictionary show --engine onnx_digits[/bold]")
def show(
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    engine: Annotated[str | None, typer.Option(help="Only this engine.")] = None,
    worker_class: Annotated[str | None, typer.Option(help="Only this worker class.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Only the fastest configuration of each row.")
    ] = False,
    models: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Model directory: entries of other files are stale."),
    ] = DEFAULT_MODELS,
    as_json: AsJson = False,
) -> None:
    """Show the measurements of each engine, worker class and configuration.

    An entry is stale if the model directory has another model file of the engine, or another
    version of its inference runtime is installed. synergai profile --measure missing measures such
    entries again.
    """
    from profiler.dictionary.files import load_dictionary
    from profiler.dictionary.origins import EngineOrigins

    shown = _select(list(load_dictionary(dictionary)), engine, worker_class)
    if best:
        shown = _fastest(shown)
    shown.sort(key=lambda entry: (entry.engine, entry.worker_class, entry.configuration))
    if as_json:
        print_json(shown)
    else:
        print_entries(shown, EngineOrigins(models))


def _select(
    entries: Sequence[ProfileEntry], engine: str | None, worker_class: str | None
) -> list[ProfileEntry]:
    """Return the entries of an engine and a worker class, if these are given; there must be any."""
    from synergai.names import is_selected

    engines = {entry.engine for entry in entries}
    _check_any("engine", engine, engines, lambda name: is_selected(name, engine or ""))
    classes = {entry.worker_class for entry in entries}
    _check_any("worker class", worker_class, classes, lambda name: name == worker_class)
    return [
        entry
        for entry in entries
        if is_selected(entry.engine, engine or "") and worker_class in (None, entry.worker_class)
    ]


def _check_any(
    what: str, given: str | None, known: Collection[str], selects: Callable[[str], bool]
) -> None:
    """Check that there are entries of an engine or worker class that was asked for."""
    from synergai.errors import NotFound

    if given and not any(map(selects, known)):
        there = f"there are entries of {', '.join(sorted(known))}" if known else "it is empty"
        raise NotFound(f"the dictionary has no entries of {what} {given!r}; {there}")


def print_entries(shown: Sequence[ProfileEntry], origins: EngineOrigins) -> None:
    """Print a table of entries; `origins` say which of them are stale."""
    now = datetime.now(UTC)
    columns: dict[str, Sequence[str]] = {
        "engine": [entry.engine for entry in shown],
        "class": [entry.worker_class for entry in shown],
        "configuration": [str(entry.configuration) for entry in shown],
        "QPS": [format_rate(entry.qps) for entry in shown],
        "error": [f"{entry.error:.1%}" if entry.error else "" for entry in shown],
        "accuracy": [format_accuracy(entry) for entry in shown],
        "T_pre": [format_seconds(entry.t_pre_s) if entry.t_pre_s else "-" for entry in shown],
        "p50": [format_seconds(entry.latency_p50_s or None) for entry in shown],
        "power": [format_watts(entry.watts) for entry in shown],
        "per query": [format_joules(entry.joules) for entry in shown],
        "queries": [f"{entry.queries:,}" if entry.queries else "" for entry in shown],
        "label": [_label(entry, origins) for entry in shown],
        "age": [format_age(entry.measured_at, now) for entry in shown],
    }
    for name in ("error", "accuracy", "power", "per query"):
        if not any(columns[name]):
            del columns[name]
    print_table(
        list(columns),
        zip(*columns.values(), strict=True),
        optional=("queries", "age", "label", "error", "per query", "power", "T_pre", "accuracy"),
    )


@app.command("import", epilog="Example: [bold]synergai dictionary import profile.csv[/bold]")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv or .db file.")],
    dictionary: Dictionary = DEFAULT_DICTIONARY,
) -> None:
    """Add a file's entries to the dictionary, replacing entries for the same configuration.

    A measured entry is not replaced by one that was measured on a busy machine, and only a
    predicted one by a prediction.
    """
    from profiler.dictionary.files import add_to_dictionary, load_dictionary
    from synergai.errors import InvalidInput
    from synergai.profiles.dictionary import MAX_ENTRIES, check_plausible

    entries = list(load_dictionary(source))
    if not entries:
        raise InvalidInput(f"{source} has no entries to import")
    check_plausible(entries)
    kept = add_to_dictionary(dictionary, entries, keep_undisturbed=True, max_entries=MAX_ENTRIES)
    if kept:
        typer.echo(
            f"{counted(len(kept), 'entry')} kept, because better than the new one; to replace "
            "them, delete them first with 'synergai dictionary delete'",
            err=True,
        )
    imported = len(entries) - len(kept)
    typer.echo(f"imported {counted(imported, 'entry')}: {dictionary}")


@app.command(epilog="Example: [bold]synergai dictionary export profile.csv[/bold]")
def export(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv file.")],
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
) -> None:
    """Write the whole dictionary to a new file."""
    from profiler.dictionary.files import export_dictionary, load_dictionary
    from synergai.errors import InvalidInput

    entries = load_dictionary(dictionary)
    if target.exists() and not replace:
        raise InvalidInput(f"{target} already exists; use --replace to replace it")
    export_dictionary(target, entries)
    typer.echo(f"exported {counted(len(entries), 'entry')}: {target}")


@app.command(epilog="Example: [bold]synergai dictionary delete --label observed[/bold]")
def delete(
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    engine: Annotated[str | None, typer.Option(help="Only this engine.")] = None,
    worker_class: Annotated[str | None, typer.Option(help="Only this worker class.")] = None,
    label: Annotated[str | None, typer.Option(help="Only this label, such as observed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries.")] = False,
) -> None:
    """Delete the entries that match all of the options.

    A running gateway picks this up within a second, and measures engines without entries again.
    """
    from profiler.dictionary.files import delete_from_dictionary
    from synergai.errors import InvalidSettings

    if not (everything or engine or worker_class or label):
        raise InvalidSettings(
            "name what to delete with --engine, --worker-class or --label; or --all"
        )

    def selects(entry: ProfileEntry) -> bool:
        return (
            engine in (None, entry.engine)
            and worker_class in (None, entry.worker_class)
            and label in (None, entry.label)
        )

    deleted = delete_from_dictionary(dictionary, selects)
    typer.echo(f"deleted {counted(len(deleted), 'entry')}: {dictionary}")


def _fastest(entries: Iterable[ProfileEntry]) -> list[ProfileEntry]:
    """Return the fastest entry of each engine, variant and worker class."""
    rows: dict[tuple[str, str, str], list[ProfileEntry]] = {}
    for entry in entries:
        key = entry.engine, entry.worker_class, entry.configuration.variant
        rows.setdefault(key, []).append(entry)
    return [max(row, key=lambda entry: entry.planned_qps) for row in rows.values()]


def _label(entry: ProfileEntry, origins: EngineOrigins) -> str:
    """Return an entry's label and what else is notable about its origin."""
    from synergai.profiles.dictionary import BUILT_IN

    remarks = [entry.label]
    if entry.timer == BUILT_IN:
        remarks.append("built-in timer")
    if (entry.digest or entry.runtime) and origins.is_stale(entry):
        remarks.append("stale")
    return ", ".join(remarks)
