"""``synergai dictionary``: show, import and export the configuration dictionary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from synergai.dictionary import ConfigurationDictionary

app: Final = typer.Typer(
    help="Show, import and export the configuration dictionary.", no_args_is_help=True
)

Dictionary = Annotated[
    Path,
    typer.Option("--dictionary", metavar="FILE", help="The dictionary: a .db, .csv or .json file."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DEFAULT_DICTIONARY: Final = Path("runs/dictionary.db")


@app.command(epilog="Example: synergai dictionary show --engine onnx_digits")
def show(
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    engine: Annotated[str | None, typer.Option(help="Only this engine.")] = None,
    worker_class: Annotated[str | None, typer.Option(help="Only this worker class.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what every engine does on every worker class in every configuration."""
    from synergai.dictionary import ConfigurationDictionary
    from synergai.dictionary_forms import load_dictionary
    from synergai.dictionary_text import write_json

    chosen = ConfigurationDictionary(
        entry
        for entry in load_dictionary(dictionary)
        if engine in (None, entry.engine) and worker_class in (None, entry.worker_class)
    )
    if as_json:
        typer.echo(write_json(chosen), nl=False)
    else:
        _print_table(chosen)


@app.command("import", epilog="Example: synergai dictionary import profile.csv")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .json or .db file.")],
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    as_json: AsJson = False,
) -> None:
    """Add a file's entries to the dictionary; they replace those for the same configuration."""
    from synergai.dictionary_forms import add_to_dictionary, load_dictionary

    entries = list(load_dictionary(source))
    add_to_dictionary(dictionary, entries)
    _report("imported", len(entries), dictionary, as_json=as_json)


@app.command(epilog="Example: synergai dictionary export profile.csv")
def export(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .json or .db file.")],
    dictionary: Dictionary = DEFAULT_DICTIONARY,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the whole dictionary to a new file."""
    from synergai.dictionary_forms import add_to_dictionary, load_dictionary
    from synergai.errors import InvalidInput

    entries = list(load_dictionary(dictionary))
    if target.exists():
        if not force:
            raise InvalidInput(f"{target} is there already; replace it with --force")
        if target.resolve() == dictionary.resolve():
            raise InvalidInput(f"{target} is the dictionary itself")
        target.unlink()
    add_to_dictionary(target, entries)
    _report("exported", len(entries), target, as_json=as_json)


def _report(done: str, count: int, file: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({done: count, "file": str(file)}))
    else:
        typer.echo(f"{done} {count} entries: {file}")


def _print_table(dictionary: ConfigurationDictionary) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    figures = ("QPS", "T_pre s", "p50 ms", "p90 ms", "p99 ms")
    table = Table(
        Column("engine", no_wrap=True),
        "worker class",
        "configuration",
        *(Column(figure, justify="right") for figure in figures),
        "label",
    )
    entries = sorted(
        dictionary, key=lambda entry: (entry.engine, entry.worker_class, entry.configuration)
    )
    for entry in entries:
        latencies = (entry.latency_p50_s, entry.latency_p90_s, entry.latency_p99_s)
        table.add_row(
            entry.engine,
            entry.worker_class,
            Text(str(entry.configuration)),
            f"{entry.qps:,.1f}",
            f"{entry.t_pre_s:.3f}",
            *(f"{seconds * 1e3:.3f}" if seconds else "" for seconds in latencies),
            Text(entry.label),
        )
    Console().print(table)
