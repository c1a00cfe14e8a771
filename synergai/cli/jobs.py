"""``synergai jobs``: list, show, watch and cancel jobs, and fetch their results."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import aclosing
from pathlib import Path  # noqa: TC003  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import count_progress, format_seconds, print_facts, print_json, print_table
from synergai.errors import InvalidInput, Unavailable
from synergai.jobs import JobState
from synergai.runtime.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from synergai.client.client import Client
    from synergai.client.jobs import JobHandle
    from synergai.jobs import Execution, JobStatus

app: Final = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, show, watch and cancel jobs, and fetch results.",
)

JobIdArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]

_MAX_REASON: Final = 60
"""Characters of a reason in the table of jobs; `jobs show` has all of it."""

_STYLES: Final = {
    JobState.QUEUED: "dim",
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.REJECTED: "red",
    JobState.EXPIRED: "red",
}

_UNSUCCESSFUL: Final = (JobState.FAILED, JobState.REJECTED)
"""States whose reason the table of jobs shows."""


@app.command("list", epilog="Example: [bold]synergai jobs list --state running --json[/bold]")
@on_gateway
def list_jobs(
    gateway: GatewayAddress,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only jobs in this state; repeatable. Default: all."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of jobs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    states = [_parse_state(name) for name in state or ()]
    found = gateway.call(lambda client: client.jobs(states, limit))
    if as_json:
        print_json(found)
    else:
        _show_jobs(found)


def _show_jobs(jobs: Sequence[JobStatus]) -> None:
    columns = ("job", "engine", "queries", "QoS", "estimated", "actual", "state")
    print_table(columns, map(_table_row, jobs))
    # Below, as a column of reasons would leave the others too little room.
    for text in _reasons(jobs):
        typer.echo(text)


@app.command(epilog="Example: [bold]synergai jobs show JOB[/bold]")
@on_gateway
def show(
    gateway: GatewayAddress,
    job: JobIdArgument,
    as_json: AsJson = False,
) -> None:
    """Show a job and which worker ran which of its queries."""

    async def run(client: Client) -> JobStatus:
        return await client.job(job).status()

    print_status(gateway.call(run), as_json=as_json)


@app.command(epilog="Example: [bold]synergai jobs watch JOB[/bold]")
@on_gateway
def watch(
    gateway: GatewayAddress,
    job: JobIdArgument,
    as_json: AsJson = False,
) -> None:
    """Watch a job until it ends; interrupting the watch does not cancel the job."""

    async def run(client: Client) -> None:
        await follow(client.job(job), as_json=as_json)

    gateway.call(run)


@app.command(epilog="Example: [bold]synergai jobs cancel JOB[/bold]")
@on_gateway
def cancel(
    gateway: GatewayAddress,
    job: JobIdArgument,
) -> None:
    """Stop a job at its next query; completed queries, and their results, are kept."""

    async def run(client: Client) -> tuple[JobStatus, JobStatus]:
        handle = client.job(job)
        return await handle.status(), await handle.cancel()

    before, status = gateway.call(run)
    if before.state.ended:
        typer.echo(f"the job had already ended ({before.state.name.lower()})", err=True)
    print_status(status, as_json=False)


@app.command(epilog="Example: [bold]synergai jobs results JOB --output results/ --follow[/bold]")
@on_gateway
def results(
    gateway: GatewayAddress,
    job: JobIdArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where to write the shards.")
    ],
    wait: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Wait for further results until the job has ended."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the results of a job over your own inputs; those in the directory already are kept."""
    # Imported here to keep NumPy out of `--help`.
    from synergai.cli.result_files import fetch_into

    async def run(client: Client) -> None:
        await fetch_into(client.job(job), output, follow=wait, as_json=as_json)

    gateway.call(run)


async def follow(job: JobHandle, *, as_json: bool) -> None:
    """Show a job's progress until it ends, then its final status."""
    status = await watch_progress(job)
    print_status(status, as_json=as_json)
    raise_unless_good(status)


async def print_accepted(
    job: JobHandle, *, as_json: bool, results: Path | str | None = None
) -> JobStatus:
    """Print the id of a job that runs on without this command; return its status.

    The id is alone on standard output, for scripts; the hints are on standard error.
    """
    if not as_json:
        typer.echo(job.id)
    status = await job.status()
    if as_json:
        print_json(status)
    elif status.state is not JobState.REJECTED:
        typer.echo(f"watch it with 'synergai jobs watch {job.id}'", err=True)
        if results is not None:
            typer.echo(
                f"fetch its results with 'synergai jobs results {job.id} --output {results}'",
                err=True,
            )
    return status


async def watch_progress(job: JobHandle) -> JobStatus:
    """Show a job's progress until it ends, and return its final status."""
    with count_progress() as progress:
        task = None  # the gateway may not know the job
        try:
            async with aclosing(job.watch()) as statuses:
                async for status in statuses:
                    if task is None:
                        task = progress.add_task(job.id, total=None)
                    progress.update(
                        task,
                        description=f"{status.spec.engine_version} {progress_text(status)}",
                        completed=status.queries_done,
                        total=status.spec.queries,
                    )
                    if status.state.ended:
                        return status
        except asyncio.CancelledError:
            _print_continues(progress.console, "cancel", job.id)
            raise
        except Unavailable:
            if task is not None:
                _print_continues(progress.console, "watch", job.id)
            raise
    raise Unavailable(f"the watch of job {job.id} ended before the job")


def _print_continues(console: Console, verb: str, job_id: str) -> None:
    """Say that a job does not depend on the command, and what can be done with it."""
    text = f"the job continues; {verb} it with 'synergai jobs {verb} {job_id}'"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def raise_unless_good(status: JobStatus) -> None:
    """Raise unless a job succeeded, and some of its inputs with it."""
    status.raise_unless_succeeded()
    if 0 < status.spec.queries <= status.failures:
        inputs = "the only input" if status.failures == 1 else f"all {status.failures:,} inputs"
        raise InvalidInput(f"{inputs} of job {status.id} failed")


def progress_text(job: JobStatus) -> str:
    """Return the state, and the prospects of the deadline of a job that has not ended."""
    texts = [_state_text(job)] if job.state.ended else [_state_text(job), deadline_text(job)]
    return ", ".join(text.plain for text in texts if text)


def _parse_state(name: str) -> JobState:
    try:
        return JobState[name.upper()]
    except KeyError:
        known = ", ".join(state.name.lower() for state in JobState)
        raise InvalidInput(f"--state: {name!r} is not a job state; choose from {known}") from None


def _table_row(job: JobStatus) -> tuple[str | Text, ...]:
    done = "" if job.state.ended else f"{job.queries_done:,} / "
    return (
        job.id,
        job.spec.engine_version,
        f"{done}{job.spec.queries:,}",
        format_seconds(job.spec.qos),
        format_seconds(job.estimated_s),
        format_seconds(job.actual_s),
        Text(", ").join(text for text in (_state_text(job), deadline_text(job)) if text),
    )


def _reasons(jobs: Sequence[JobStatus]) -> list[str]:
    """Return a line for each job that did not succeed for a known reason."""
    return [
        printable(f"{job.id} {job.state.name.lower()}: {_short(job.reason)}")
        for job in jobs
        if job.reason and job.state in _UNSUCCESSFUL
    ]


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"


def _state_text(job: JobStatus) -> Text:
    return Text(job.state.name.lower(), _STYLES[job.state])


def deadline_text(job: JobStatus) -> Text:
    """Return whether a job met its QoS, or by how much it missed it or is expected to."""
    if math.isinf(job.spec.qos):
        return Text("")
    expected = format_seconds(job.expected_excess_s) if job.expected_excess_s else ""
    if job.violated:
        text = f"violated by {format_seconds(job.excess_s)}" if job.excess_s else "violated"
        return Text(f"{text} so far, ~{expected} at its end" if expected else text, "red")
    if expected:
        return Text(f"will miss its QoS by ~{expected}", "yellow")
    return Text("met" if job.state is JobState.SUCCEEDED else "", "green")


def print_status(job: JobStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    facts: list[tuple[str, str | Text]] = [
        ("job", job.id),
        ("engine", job.spec.engine_version),
        ("stages", " → ".join(job.stages)),
        ("chosen", job.choice),
        ("variant", job.spec.variant or variants_text(job)),
        ("floor", f"accuracy of {floor:.4g}" if (floor := job.spec.min_accuracy) else ""),
        ("state", _state_text(job)),
        ("reason", job.reason),
        ("queries", f"{job.queries_done:,} of {job.spec.queries:,}"),
        ("failures", _failures_text(job)),
        ("QoS", format_seconds(job.spec.qos)),
        ("deadline", deadline_text(job)),
        ("waited", format_seconds(job.waited_s)),
        ("estimated", format_seconds(job.estimated_s)),
        ("remaining", format_seconds(job.remaining_s)),
        ("actual", format_seconds(job.actual_s)),
        ("accuracy", "" if job.accuracy is None else f"{job.accuracy:.2%}"),
        ("tenant", job.spec.tenant),
    ]
    facts += [
        (
            "ran" if index == 0 else "",
            _execution_text(each),
        )
        for index, each in enumerate(job.executions)
    ]
    print_facts((name, value) for name, value in facts if value)


def _failures_text(job: JobStatus) -> str:
    """Return how many inputs failed, and how many may; empty if none did."""
    if not job.failures:
        return ""
    most = job.spec.max_failures
    limit = "" if most is None else f"; {most:,} may"
    return f"{job.failures:,} of {counted(job.spec.queries, 'input')}{limit}"


def variants_text(job: JobStatus) -> str:
    """Return the share of each variant in a job's queries; empty if its engine has none."""
    queries = Counter[str]()
    for execution in job.executions:
        queries[execution.configuration.variant] += execution.count
    del queries[""]
    total = queries.total()
    return ", ".join(f"{name} {count / total:.0%}" for name, count in queries.most_common())


def _execution_text(execution: Execution) -> str:
    route = execution.worker_id.replace(" ", " → ")
    return (
        f"{counted(execution.count, 'query')} from {execution.first:,} on {route} "
        f"({execution.configuration}) in {format_seconds(execution.seconds)}"
    )
