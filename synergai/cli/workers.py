"""``synergai workers``: who has joined, and what they can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from synergai.cli.gateway_client import ask
from synergai.cli.options import AsJson, Target, TlsCa
from synergai.cli.output import print_json, print_table, seconds, watts
from synergai.client.target import DEFAULT_TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.client.fleet import WorkerStatus
    from synergai.domain import Engine

app: Final = typer.Typer(rich_markup_mode="rich")


@app.command(epilog="Example: [bold]synergai workers --json[/bold]")
def workers(as_json: AsJson = False, target: Target = DEFAULT_TARGET, tls_ca: TlsCa = None) -> None:
    """Show the workers that have joined, their engines and what is loaded."""
    joined = ask(target, tls_ca, lambda client: client.workers())
    if as_json:
        print_json(joined)
    elif joined:
        show_workers(joined)
    else:
        typer.echo(f"no worker has joined the gateway at {target}")


def show_workers(workers: Sequence[WorkerStatus]) -> None:
    """One table of the machines, one of what is on them: side by side, 80 columns are too few."""
    columns = ("worker", "class", "state", "cores", "power", "queries", "heard")
    print_table(columns, map(_machine, workers))
    rows = (row for worker in workers for row in _engines(worker))
    typer.echo()
    print_table(("worker", "engine", "loaded"), rows)


def _machine(worker: WorkerStatus) -> tuple[str | Text, ...]:
    return (
        worker.id,
        worker.worker_class,
        worker.state.name.lower(),
        str(worker.cores),
        _power(worker),
        f"{worker.queries_done:,}",
        f"{seconds(worker.last_heard_s)} ago",
    )


def _engines(worker: WorkerStatus) -> Iterator[tuple[str | Text, ...]]:
    for number, engine in enumerate(worker.engines):
        name = worker.id if number == 0 else ""
        yield name, engine.name, _sessions(worker, engine)


def _sessions(worker: WorkerStatus, engine: Engine) -> Text:
    """What is loaded of an engine, and what is to be known before more is."""
    if engine.fault:
        return Text(engine.fault, "red")
    loaded = [Text(str(s.configuration)) for s in worker.sessions if s.engine == engine.name]
    if engine.name in worker.unprofiled:
        loaded.append(Text("not profiled", "yellow"))
    return Text("\n").join(loaded)


def _power(worker: WorkerStatus) -> Text:
    drawn = (
        Text("not measured", "dim")
        if worker.watts is None
        else Text(f"{watts(worker.watts) or '0 W'}\nby {worker.meter}")
    )
    return Text("\n").join([Text(worker.power_mode), drawn] if worker.power_mode else [drawn])
