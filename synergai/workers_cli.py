"""``synergai workers``: who has joined, and what they can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from synergai.options import AsJson, Target, TlsCa
from synergai.output import print_json, print_table, seconds, watts
from synergai.target import DEFAULT_TARGET

if TYPE_CHECKING:
    from synergai.client_fleet import WorkerStatus

app: Final = typer.Typer(rich_markup_mode="rich")


@app.command(epilog="Example: [bold]synergai workers --json[/bold]")
def workers(as_json: AsJson = False, target: Target = DEFAULT_TARGET, tls_ca: TlsCa = None) -> None:
    """Show the workers that have joined, their engines and what is loaded."""

    async def work() -> None:
        from synergai.client import Client

        async with Client(target, tls_ca=tls_ca) as client:
            joined = await client.workers()
        if as_json:
            print_json(joined)
            return
        if not joined:
            typer.echo(f"no worker has joined the gateway at {target}")
            return
        columns = ("worker", "class", "state", "cores", "power", "engines", "loaded", "queries")
        print_table((*columns, "heard"), map(_row, joined))

    import uvloop

    uvloop.run(work())


def _row(worker: WorkerStatus) -> tuple[str | Text, ...]:
    engines = Text("\n").join(
        Text(f"{engine.name}: {engine.fault}", "red")
        if engine.fault
        else Text(f"{engine.name} (not profiled)", "yellow")
        if engine.name in worker.unprofiled
        else Text(engine.name)
        for engine in worker.engines
    )
    loaded = "\n".join(f"{each.engine} ({each.configuration})" for each in worker.sessions)
    return (
        worker.id,
        worker.worker_class,
        worker.state.name.lower(),
        str(worker.cores),
        _power(worker),
        engines,
        loaded,
        f"{worker.queries_done:,}",
        f"{seconds(worker.last_heard_s)} ago",
    )


def _power(worker: WorkerStatus) -> Text:
    drawn = (
        Text("not measured", "dim")
        if worker.watts is None
        else Text(f"{watts(worker.watts) or '0 W'} by {worker.meter}")
    )
    return Text("\n").join([Text(worker.power_mode), drawn] if worker.power_mode else [drawn])
