"""``synergai submit``: a job on an engine's sample set, or over files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from synergai.cli.durations import parse_duration, parse_instant
from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.jobs import (
    FailOnViolation,
    ShardFormatOption,
    follow,
    parse_format,
    print_accepted,
)
from synergai.cli.options import AsJson, EngineVersion, MinAccuracy, Priority
from synergai.domain import JobState
from synergai.errors import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.client.client import Client
    from synergai.client.requests import JobOptions

app: Final = typer.Typer(rich_markup_mode="rich")
_OF_INPUTS: Final = {
    "output": "--output",
    "shard_format": "--format",
    "only": "--only",
    "max_failures": "--max-failures",
}
"""Options that need inputs of the job's own, by their parameters."""


Queries = Annotated[
    int | None, typer.Option("--queries", "-q", help="Number of queries on the sample set.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs",
        "-i",
        metavar="PATH",
        help="Instead: a file, directory, pattern or manifest of inputs; repeatable.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Where to write the results. Default: they stay at the gateway until fetched.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OUTPUT",
        help="Only this output, such as classes or boxes; repeatable. Default: all tensors.",
    ),
]
MaxFailures = Annotated[
    int | None,
    typer.Option(min=0, help="Inputs that may fail before the job does. Default: all."),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Print the job's id once it is accepted, and exit.")
]
Qos = Annotated[
    str | None,
    typer.Option(
        "--qos",
        metavar="DURATION",
        help="Time to completion: seconds, or 250ms, 90s, 30m or 2h. Default: no deadline.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="TIME", help="Complete by 18:00, or a date and time, instead of --qos."
    ),
]
Tenant = Annotated[str, typer.Option(help="Tenant that the job is accounted to.")]
Key = Annotated[
    str,
    typer.Option(
        help="Idempotency key; submitting again with it returns the same job. Default: with"
        " --inputs, it follows from the command and its files."
    ),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Wait for the job to end.")]


@app.command(
    context_settings={"allow_extra_args": True},  # refused with advice
    epilog="Examples: [bold]synergai submit onnx_digits --queries 500 --qos 5 --watch[/bold], "
    "[bold]synergai submit resnet50 --inputs 'photos/*.jpg' --output results/ --by 18:00[/bold]",
)
@on_gateway
def submit(
    gateway: GatewayAddress,
    ctx: typer.Context,
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="Name of the engine.")],
    queries: Queries = None,
    inputs: Inputs = None,
    output: Output = None,
    shard_format: ShardFormatOption = None,
    only: Only = None,
    max_failures: MaxFailures = None,
    detach: Detach = False,
    qos: Qos = None,
    by: By = None,
    priority: Priority = 0,
    version: EngineVersion = "",
    min_accuracy: MinAccuracy = 0.0,
    tenant: Tenant = "",
    key: Key = "",
    watch: Watch = False,
    fail_on_violation: FailOnViolation = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job: queries on an engine's sample set, or over your own inputs.

    Prints the job's id once the job is in the gateway's journal. With --inputs, it then waits for
    the job and, with --output, writes the results as they are stored.
    """
    _check_combination(ctx.params, ctx.args)
    qos_s = None if qos is None else parse_duration(qos, "--qos")
    chosen_format = parse_format(shard_format)

    options: JobOptions = {
        "qos": qos_s,
        "priority": priority,
        "tenant": tenant,
        "version": version,
        "min_accuracy": min_accuracy,
    }

    async def run_over_inputs(client: Client) -> None:
        # Imported here to keep NumPy out of jobs on samples.
        from synergai.cli.own_data import OwnDataJob

        job = OwnDataJob(
            client,
            engine,
            options,
            patterns=tuple(inputs or ()),
            output=output,
            shard_format=chosen_format,
            outputs=tuple(only or ()),
            max_failures=max_failures,
            by=by,
            key=key,
        )
        await job.run(detach=detach, fail_on_violation=fail_on_violation, as_json=as_json)

    async def run_on_samples(client: Client) -> None:
        instant = None if by is None else parse_instant(by, "--by", datetime.now(UTC))
        job = await client.submit(
            engine, queries=queries, by=instant, idempotency_key=key, **options
        )
        if (watch or fail_on_violation) and not detach:
            typer.echo(f"job {job.id}", err=True)
            await follow(job, as_json=as_json, fail_on_violation=fail_on_violation)
            return
        status = await print_accepted(job, as_json=as_json)
        if status.state is JobState.REJECTED:
            status.raise_unless_succeeded()

    gateway.call(run_over_inputs if inputs else run_on_samples, engine)


def _check_combination(given: Mapping[str, Any], further: Sequence[str]) -> None:
    """Refuse options that contradict each other, by their parameters, and further arguments."""
    if further:
        raise InvalidSettings(
            f"unexpected argument {further[0]!r}: repeat --inputs for each path, and quote a "
            "pattern, such as --inputs 'photos/*.jpg', so that the shell does not expand it"
        )
    if given["qos"] is not None and given["by"] is not None:
        raise InvalidSettings("give either --qos or --by")
    if (given["queries"] is None) == (not given["inputs"]):
        raise InvalidSettings("give either --queries, or the inputs of the job by --inputs")
    if not given["inputs"]:
        for name, option in _OF_INPUTS.items():
            if given[name] not in (None, False, [], ()):
                raise InvalidSettings(f"{option} is for jobs over your own inputs: give --inputs")
    elif given["detach"] and (given["watch"] or given["fail_on_violation"]):
        raise InvalidSettings("--detach does not wait for the job: leave --watch out")
