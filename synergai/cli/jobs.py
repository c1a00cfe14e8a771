"""``synergai submit`` and ``synergai jobs``: submit, list, show, watch and cancel jobs."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from synergai.cli.gateway_client import call_gateway
from synergai.cli.options import AsJson, EngineVersion, Priority, Target, TlsCa, TokenFile
from synergai.cli.output import format_seconds, print_facts, print_json, print_table
from synergai.client.target import DEFAULT_TARGET
from synergai.domain import JobState
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from rich.progress import Progress

    from synergai.client.client import Client
    from synergai.client.jobs import JobHandle
    from synergai.jobs import Execution, JobStatus

VIOLATED: Final = 3
"""Exit code of a command whose job missed its QoS."""

submit_app: Final = typer.Typer(rich_markup_mode="rich")
app: Final = typer.Typer(rich_markup_mode="rich", help="List, show, watch and cancel jobs.")

FailOnViolation = Annotated[
    bool,
    typer.Option(
        "--fail-on-violation",
        help=f"Wait for the job to end, and exit with {VIOLATED} if it missed its QoS.",
    ),
]
JobIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's id, or at least 4 characters that only it begins with."
    ),
]

_MIN_PREFIX: Final = 4
_ID_LENGTH: Final = 16
"""Characters of a whole id, which needs no list of jobs to be found."""
_MAX_LISTED: Final = 1000
"""Newest jobs among which the beginning of an id is looked up."""
_MAX_NAMED: Final = 8
"""Ids named in an error."""
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


@submit_app.command(
    epilog="Example: [bold]synergai submit onnx_digits --queries 500 --qos 5 --watch[/bold]"
)
def submit(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="Name of the engine.")],
    queries: Annotated[int, typer.Option("--queries", "-q", help="Number of queries.")],
    qos: Annotated[
        float | None,
        typer.Option(
            "--qos",
            metavar="SECONDS",
            help="Time to completion. Default: no deadline.",
        ),
    ] = None,
    priority: Priority = 0,
    version: EngineVersion = "",
    tenant: Annotated[str, typer.Option(help="Tenant that the job is accounted to.")] = "",
    key: Annotated[
        str,
        typer.Option(help="Idempotency key; submitting again with it returns the same job."),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Wait for the job to end.")] = False,
    fail_on_violation: FailOnViolation = False,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Submit a job of queries on an engine's sample set, with an optional QoS.

    Prints the job's id once the job is in the gateway's journal.
    """

    async def run(client: Client) -> None:
        job = await client.submit(
            engine,
            queries=queries,
            qos=qos,
            priority=priority,
            tenant=tenant,
            version=version,
            idempotency_key=key,
        )
        if watch or fail_on_violation:
            await _follow(job, as_json=as_json, fail_on_violation=fail_on_violation)
            return
        if not as_json:
            typer.echo(job.id)
        status = await job.status()
        if as_json:
            print_json(status)
        if status.state is JobState.REJECTED:
            status.raise_unless_succeeded()

    call_gateway(target, tls_ca, token_file, run)


@app.command("list", epilog="Example: [bold]synergai jobs list --state running --json[/bold]")
def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only jobs in this state; repeatable. Default: all."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of jobs.")] = 20,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """List jobs, newest first."""
    states = [_parse_state(name) for name in state or ()]
    jobs = call_gateway(target, tls_ca, token_file, lambda client: client.jobs(states, limit))
    if as_json:
        print_json(jobs)
        return
    columns = ("job", "engine", "queries", "QoS", "estimated", "actual", "state")
    rows = [_table_row(job) for job in jobs]
    # Without a failure the column of reasons is left out, to leave room for the others.
    reasons = any(row[-1] for row in rows)
    print_table(
        (*columns, "reason") if reasons else columns, rows if reasons else [r[:-1] for r in rows]
    )


@app.command(epilog="Example: [bold]synergai jobs show JOB[/bold]")
def show(
    job: JobIdArgument,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Show a job and which worker ran which of its queries."""

    async def run(client: Client) -> JobStatus:
        return await (await _find(client, job)).status()

    _print_status(call_gateway(target, tls_ca, token_file, run), as_json=as_json)


@app.command(epilog="Example: [bold]synergai jobs watch JOB[/bold]")
def watch(
    job: JobIdArgument,
    fail_on_violation: FailOnViolation = False,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Watch a job until it ends; interrupting the watch does not cancel the job."""

    async def run(client: Client) -> None:
        found = await _find(client, job)
        await _follow(found, as_json=as_json, fail_on_violation=fail_on_violation)

    call_gateway(target, tls_ca, token_file, run)


@app.command(epilog="Example: [bold]synergai jobs cancel JOB[/bold]")
def cancel(
    job: JobIdArgument,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Stop a job at its next query; completed queries are kept."""

    async def run(client: Client) -> tuple[JobStatus, JobStatus]:
        handle = await _find(client, job)
        return await handle.status(), await handle.cancel()

    before, status = call_gateway(target, tls_ca, token_file, run)
    if before.state.ended:
        typer.echo(f"the job had already ended ({before.state.name.lower()})", err=True)
    _print_status(status, as_json=as_json)


@app.callback(invoke_without_command=True)
def _jobs(
    context: typer.Context,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """List, show, watch and cancel jobs. Without a command, list the newest."""
    if context.invoked_subcommand is None:
        list_jobs(as_json=as_json, target=target, tls_ca=tls_ca, token_file=token_file)


async def _find(client: Client, job: str) -> JobHandle:
    """Return the job with this id, or the only listed one whose id begins with it.

    Raises:
        InvalidInput: several ids begin with it.
        SynergaiError: a call failed.
    """
    if len(job) < _MIN_PREFIX or len(job) >= _ID_LENGTH:
        return client.job(job)
    ids = [each.id for each in await client.jobs(limit=_MAX_LISTED) if each.id.startswith(job)]
    if len(ids) > 1 and job not in ids:
        more = ", …" if len(ids) > _MAX_NAMED else ""
        raise InvalidInput(f"several jobs begin with {job!r}: {', '.join(ids[:_MAX_NAMED])}{more}")
    return client.job(ids[0] if len(ids) == 1 else job)


async def _follow(job: JobHandle, *, as_json: bool, fail_on_violation: bool = False) -> None:
    """Show a job's progress until it ends, then its final status.

    Raises:
        SynergaiError: the job did not succeed.
        Exit: it missed its QoS, and `fail_on_violation` is set.
    """
    status: JobStatus | None = None
    with _progress() as progress:
        task = progress.add_task(job.id, total=None)
        try:
            async with aclosing(job.watch()) as statuses:
                async for status in statuses:
                    progress.update(
                        task,
                        description=f"{status.spec.engine_version} {progress_text(status)}",
                        completed=status.queries_done,
                        total=status.spec.queries,
                    )
        except asyncio.CancelledError:
            progress.console.print(
                f"the job continues; cancel it with 'synergai jobs cancel {job.id}'",
                markup=False,
                highlight=False,
            )
            raise
    if status is not None:
        _print_status(status, as_json=as_json)
        status.raise_unless_succeeded()
        if fail_on_violation and status.violated:
            raise typer.Exit(VIOLATED)


def progress_text(job: JobStatus) -> str:
    """Return the state, and what is known about the deadline of a job that has not ended."""
    texts = [_state_text(job)] if job.state.ended else [_state_text(job), deadline_text(job)]
    return ", ".join(text.plain for text in texts if text)


def _progress() -> Progress:
    """Return a progress bar on standard error, leaving standard output to the result."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


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
        _short(job.reason) if job.state in _UNSUCCESSFUL else "",
    )


def _short(reason: str) -> str:
    """Return the beginning of a reason, on one line."""
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


def _print_status(job: JobStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    facts: list[tuple[str, str | Text]] = [
        ("job", job.id),
        ("engine", job.spec.engine_version),
        ("state", _state_text(job)),
        ("reason", job.reason),
        ("queries", f"{job.queries_done:,} of {job.spec.queries:,}"),
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


def _execution_text(execution: Execution) -> str:
    return (
        f"{execution.count:,} queries from {execution.first:,} on {execution.worker_id} "
        f"({execution.configuration}) in {format_seconds(execution.seconds)}"
    )
