"""``synergai submit``: a job on an engine's sample set, or over files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer

from synergai.cli.durations import parse_duration, parse_instant
from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.jobs import FailOnViolation, ShardFormatOption, follow, print_accepted
from synergai.cli.options import AsJson, EngineVersion, MinAccuracy, Priority
from synergai.domain import JobState
from synergai.errors import InvalidSettings

if TYPE_CHECKING:
    from synergai.client.client import Client
    from synergai.client.requests import JobOptions

app: Final = typer.Typer(rich_markup_mode="rich")
_PATHS: Final = "A file, directory, pattern or manifest of inputs, instead of --queries"

Queries = Annotated[
    int | None, typer.Option("--queries", "-q", help="Number of queries on the sample set.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", "-i", metavar="PATH", help=f"{_PATHS}; repeatable."),
]
Header = Annotated[
    Literal["yes", "no"] | None,
    typer.Option(
        metavar="yes|no",
        help="Whether the first row of CSV files names the columns. Default: if it names the "
        "engine's inputs; in doubt, the file is refused.",
    ),
]
Encoding = Annotated[
    str, typer.Option(metavar="NAME", help="Encoding of CSV, JSON-lines and manifest files.")
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
        " inputs, it follows from the command and its files."
    ),
]
Watch = Annotated[
    bool | None,
    typer.Option(
        "--watch/--detach",
        "-w",
        help="Wait for the job to end, or exit once it is accepted. Default: wait with inputs.",
    ),
]


class OwnInputs(NamedTuple):
    """Options of a job over inputs of its own."""

    inputs: Inputs = None
    header: Header = None
    encoding: Encoding = "utf-8"
    output: Output = None
    format: ShardFormatOption = None
    only: Only = None
    max_failures: MaxFailures = None

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        values, defaults = self._asdict(), self._field_defaults
        return [name for name in values if values[name] not in (defaults[name], [])]


class JobTerms(NamedTuple):
    """Options of every job."""

    qos: Qos = None
    by: By = None
    priority: Priority = 0
    version: EngineVersion = ""
    min_accuracy: MinAccuracy = 0.0
    tenant: Tenant = ""
    key: Key = ""

    def options(self) -> JobOptions:
        """Return the options of the client's call."""
        if self.qos is not None and self.by is not None:
            raise InvalidSettings("give either --qos or --by")
        return {
            "qos": None if self.qos is None else parse_duration(self.qos, "--qos"),
            "priority": self.priority,
            "tenant": self.tenant,
            "version": self.version,
            "min_accuracy": self.min_accuracy,
        }

    def instant(self) -> datetime | None:
        """Return the instant of `--by`, which must not have passed."""
        return None if self.by is None else parse_instant(self.by, "--by", datetime.now(UTC))


@app.command(
    epilog="Examples: [bold]synergai submit onnx_digits --queries 500 --qos 5 --watch[/bold], "
    "[bold]synergai submit resnet50 --inputs 'photos/*.jpg' --output results/ --by 18:00[/bold]",
)
@on_gateway
def submit(
    gateway: GatewayAddress,
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="Name of the engine.")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help=f"{_PATHS}.", show_default=False)
    ] = None,
    *,
    queries: Queries = None,
    own: OwnInputs,
    terms: JobTerms,
    watch: Watch = None,
    fail_on_violation: FailOnViolation = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job: queries on an engine's sample set, or over your own inputs.

    Prints the job's id once the job is in the gateway's journal. With inputs, it then waits for
    the job and, with --output, writes the results as they are stored.
    """
    patterns = (*(own.inputs or ()), *(paths or ()))
    if (queries is None) == (not patterns):
        raise InvalidSettings("give either --queries, or the inputs of the job by --inputs")
    if not patterns and (given := own.given()):
        option = given[0].replace("_", "-")
        raise InvalidSettings(f"--{option} is for jobs over your own inputs: give --inputs")
    if watch is False and fail_on_violation:
        raise InvalidSettings("--fail-on-violation waits for the job: leave --detach out")
    is_watched = fail_on_violation or (bool(patterns) if watch is None else watch)
    options = terms.options()

    async def run_over_inputs(client: Client) -> None:
        # Imported here to keep NumPy out of jobs on samples.
        from synergai.cli.own_data import OwnDataJob

        job = OwnDataJob(client, engine, patterns, own, terms)
        await job.run(detach=not is_watched, fail_on_violation=fail_on_violation, as_json=as_json)

    async def run_on_samples(client: Client) -> None:
        job = await client.submit(
            engine, queries=queries, by=terms.instant(), idempotency_key=terms.key, **options
        )
        if is_watched:
            typer.echo(f"job {job.id}", err=True)
            await follow(job, as_json=as_json, fail_on_violation=fail_on_violation)
            return
        status = await print_accepted(job, as_json=as_json)
        if status.state is JobState.REJECTED:
            status.raise_unless_succeeded()

    gateway.call(run_over_inputs if patterns else run_on_samples, engine)
