"""Commands that show the workers, the engines in stages, and why a request or job is late."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import (
    cut_text,
    format_age,
    format_rate,
    format_seconds,
    format_watts,
    print_json,
    print_table,
)
from synergai.core.routes.deployment import route_text
from synergai.core.routes.links import GATEWAY
from synergai.errors import NotFound
from synergai.names import is_selected
from synergai.profiles.dictionary import DISTURBED
from synergai.runtime.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from synergai.client.fleet import WorkerStatus
    from synergai.client.store import PlacedEngine
    from synergai.core.routes.deployment import EngineDeployment
    from synergai.domain import Engine


workers_app: Final = typer.Typer(rich_markup_mode="rich")
_BYTES_PER_MBIT = 125_000.0


@workers_app.command(epilog="Example: [bold]synergai workers --json[/bold]")
@on_gateway
def workers(
    gateway: GatewayAddress,
    links: Annotated[
        bool, typer.Option("--links", help="Show the links between gateway and workers.")
    ] = False,
    as_fleet: Annotated[
        bool, typer.Option("--as-fleet", help="Print a fleet file for [bold]synergai plan[/bold].")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the registered workers, their engines and sessions."""
    registered = gateway.call(lambda client: client.workers())
    if as_json:
        print_json(registered)
    elif as_fleet:
        print_fleet(registered)
    elif registered and links:
        show_links(registered)
    elif registered:
        show_workers(registered)
    else:
        typer.echo(f"no worker is registered at the gateway {gateway.target}")


def show_workers(workers: Sequence[WorkerStatus]) -> None:
    """Print a table of the workers and one of their engines, to fit 80 columns."""
    columns = ("worker", "class", "state", "cores", "memory", "power", "queries", "heard")
    print_table(
        columns,
        map(_worker_row, workers),
        optional=("heard", "cores", "queries", "memory", "power"),
    )
    rows = [row for worker in workers for row in _engine_rows(worker)]
    rows += [row for worker in workers for row in _placed_rows(worker)]
    if rows:
        typer.echo()
        print_table(("worker", "engine", "state and profile"), rows)


def _worker_row(worker: WorkerStatus) -> tuple[str | Text, ...]:
    return (
        worker.id,
        worker.worker_class,
        worker.state.name.lower(),
        str(worker.cores),
        _memory_text(worker),
        _power_text(worker),
        f"{worker.queries_done:,}",
        f"{format_seconds(worker.last_heard_s)} ago",
    )


def _engine_rows(worker: WorkerStatus) -> Iterator[tuple[str | Text, ...]]:
    for number, engine in enumerate(worker.engines):
        name = worker.id if number == 0 else ""
        if engine.fault:
            yield name, engine.name, cut_text(engine.fault, "red")
            continue
        variants = ", ".join(variant.name for variant in engine.variants)
        texts = (
            _sessions_text(worker, engine),
            Text(f"variants {variants}" if variants else "", "dim"),
            _profile_text(worker, engine),
        )
        yield name, engine.name, Text("\n").join(text for text in texts if text)
        for unusable in worker.unusable:
            if unusable.session.engine == engine.name:
                text = f"{unusable.session.configuration}: {unusable.reason}"
                yield "", "", cut_text(text, "red")
        for unused in engine.unused_variants:
            what = f"variant {unused.variant}" if unused.variant else "its changed files"
            text = f"{what}: {unused.reason}"
            yield "", "", Text(text, "yellow")  # whole: it may name two files
        if engine.unverified:
            yield "", "", cut_text(f"unverified: {engine.unverified}", "yellow")


def _placed_rows(worker: WorkerStatus) -> Iterator[tuple[str | Text, ...]]:
    from synergai.client.store import PlacedState

    for each in worker.placed:
        if each.state is not PlacedState.INSTALLED:
            state = Text("to be fetched: ").append(placed_text(each))
            yield worker.id, f"{each.engine}/{each.version}", state


def placed_text(placed: PlacedEngine) -> Text:
    """Return the state of a placed version."""
    from synergai.client.store import PlacedState

    if placed.state is PlacedState.FETCHING and placed.size:
        return Text(f"fetching, {placed.received * 100 // placed.size} %")
    text = Text("waiting" if placed.state is PlacedState.UNKNOWN else placed.state.name.lower())
    if placed.fault:
        text = Text(f"{text.plain}: {placed.fault}", "red")
    return text


def _sessions_text(worker: WorkerStatus, engine: Engine) -> Text:
    """Return a usable engine's sessions on a worker, and whether it is to be profiled."""
    loaded = [Text(str(s.configuration)) for s in worker.sessions if s.engine == engine.name]
    if engine.name in worker.unprofiled:
        loaded.append(Text("not profiled", "yellow"))
    return Text("\n").join(loaded)


def _profile_text(worker: WorkerStatus, engine: Engine) -> Text:
    """Return origin and age of an engine's profile, and the pace observed since."""
    for profile in worker.profiles:
        if profile.entry.engine == engine.name:
            age = format_age(profile.entry.measured_at, datetime.now(UTC))
            text = f"{profile.entry.label} {age} ago" if age else profile.entry.label
            if profile.pace is not None:
                text += f", pace {profile.pace:.2f}"
            return Text(text, "yellow" if profile.entry.label == DISTURBED else "dim")
    return Text("")


def _memory_text(worker: WorkerStatus) -> str:
    """Return the memory of a worker's engines and its limit, and how that is enforced."""
    used = f"{worker.engines_rss_bytes / 1e6:,.0f}"
    if not worker.memory_limit_bytes:
        return f"{used} MB"
    limit = f"{worker.memory_limit_bytes / 1e6:,.0f} MB"
    return f"{used} of {limit}\n{worker.memory_enforcement}"


def _power_text(worker: WorkerStatus) -> Text:
    drawn = (
        Text("not measured", "dim")
        if worker.watts is None
        else Text(f"{format_watts(worker.watts) or '0 W'}\nby {worker.meter}")
    )
    return Text("\n").join([Text(worker.power_mode), drawn] if worker.power_mode else [drawn])


def show_links(workers: Sequence[WorkerStatus]) -> None:
    """Print a table of what is known of the links between the workers and the gateway."""
    print_table(
        ("from", "to", "rate", "round trip"),
        (
            (source, target, _rate_text(bytes_per_s), format_seconds(round_trip_s or None))
            for worker in workers
            for source, target, bytes_per_s, round_trip_s in _links(worker)
        ),
    )


def _links(worker: WorkerStatus) -> Iterator[tuple[str, str, float, float]]:
    """Yield the ends, bytes per second and round trip of links; 0 is unknown."""
    link = worker.link
    yield GATEWAY, worker.id, link.to_bytes_per_s, link.round_trip_s
    yield worker.id, GATEWAY, link.from_bytes_per_s, link.round_trip_s
    for each in worker.peers:
        yield each.worker_id, worker.id, each.bytes_per_s, each.round_trip_s


def _rate_text(bytes_per_s: float) -> str:
    return f"{_mbit_s(bytes_per_s):,.10g} Mbit/s" if bytes_per_s else "unknown"


def _mbit_s(bytes_per_s: float) -> float:
    """Return megabits per second, to four digits."""
    return float(f"{bytes_per_s / _BYTES_PER_MBIT:.4g}")


def print_fleet(workers: Sequence[WorkerStatus]) -> None:
    """Print a fleet file of the workers, with what is known of links and early exits."""
    connected = {GATEWAY, *(worker.id for worker in workers)}
    for worker in workers:
        typer.echo("\n".join(_fleet_lines(worker, connected)) + "\n")
    rates = {
        each.name: each.exit.rate
        for worker in workers
        for each in worker.engines
        if each.exit is not None and not each.fault
    }
    if rates:
        typer.echo("[exits]")
    for name, rate in sorted(rates.items()):
        typer.echo(f'"{name}" = {rate:.4g}')


def _fleet_lines(worker: WorkerStatus, connected: Collection[str]) -> Iterator[str]:
    yield "[[workers]]"
    yield f'id = "{worker.id}"'
    yield f'worker_class = "{worker.worker_class}"'
    if worker.memory_limit_bytes:
        yield f"memory_mb = {worker.memory_limit_bytes / 1e6:.0f}"
    yield f"cores = {worker.cores}"
    if times := [f'"{each.name}" = {each.query_s:.3g}' for each in worker.engines if each.query_s]:
        yield f"query_s = {{ {', '.join(times)} }}"
    for source, target, bytes_per_s, round_trip_s in _links(worker):
        if bytes_per_s and source in connected:
            yield ""
            yield "[[links]]"
            yield f'from = "{source}"'
            yield f'to = "{target}"'
            yield f"mbit_s = {_mbit_s(bytes_per_s):.10g}"
            yield f"latency_ms = {round_trip_s / 2 * 1e3:.3g}"


routes_app: Final = typer.Typer(rich_markup_mode="rich")


@routes_app.command(epilog="Example: [bold]synergai routes onnx_resnet50_op11[/bold]")
@on_gateway
def routes(
    gateway: GatewayAddress,
    engine: Annotated[
        str, typer.Argument(metavar="[ENGINE]", help="NAME or NAME/N; by default, all.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show which stages of engines run where, what is wanted instead, and why.

    The rates are the queries per second that the plan expects, and those of the last seconds.
    """
    found = [
        each
        for each in gateway.call(lambda client: client.deployments())
        if is_selected(each.engine, engine)
    ]
    if engine and not found:
        raise NotFound(f"{engine!r} has no stages; 'synergai engines list' shows all engines")
    if as_json:
        print_json(found)
        return
    print_table(
        ("engine", "state", "deployed", "wanted", "planned", "rate", "reason"),
        map(_route_row, found),
        optional=("wanted", "rate"),
    )


def _route_row(each: EngineDeployment) -> tuple[str | Text, ...]:
    deployed, wanted = ("\n".join(map(route_text, of)) for of in (each.deployed, each.wanted))
    return (
        each.engine,
        each.state,
        deployed,
        "" if wanted == deployed else wanted,
        f"{format_rate(each.predicted_per_s)}/s" if each.predicted_per_s else "",
        f"{format_rate(each.queries_per_s)}/s" if each.queries_per_s else "",
        cut_text(each.fault, "red") if each.fault else Text(each.reason),
    )


explain_app: Final = typer.Typer(rich_markup_mode="rich")


@explain_app.command(epilog="Example: [bold]synergai explain r1-2a[/bold]")
@on_gateway
def explain(
    gateway: GatewayAddress,
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="[REQUEST|JOB]",
            help="The id of a request or job; by default, of the newest that was late.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say what a request or job waited for, behind what, and why no worker was in time."""
    found = gateway.call(lambda client: client.explain(request_id))
    if as_json:
        print_json(found)
        return
    typer.echo(printable(f"{found.name}: {counted(found.queries, 'query')} of {found.engine}"))
    for sentence in found.sentences:
        typer.echo(printable(sentence))
