"""``synergai submit``: a job on an engine's sample set, or over files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.gateway_client import GatewayAddress, ServedEngine, on_gateway
from synergai.cli.jobs import follow, print_accepted
from synergai.cli.options import INPUTS_HELP, AsJson, JobTerms, OwnInputs
from synergai.errors import InvalidSettings
from synergai.jobs import JobState

if TYPE_CHECKING:
    from synergai.client.client import Client

app: Final = typer.Typer(rich_markup_mode="rich")

Queries = Annotated[
    int | None, typer.Option("--queries", "-q", help="Number of queries on the sample set.")
]
Watch = Annotated[
    bool | None,
    typer.Option(
        "--watch/--detach",
        "-w",
        help="Wait for the job to end, or exit once it is accepted. Default: wait with inputs.",
    ),
]


@app.command(
    epilog="Examples: [bold]synergai submit onnx_digits --queries 500 --qos 5 --watch[/bold], "
    "[bold]synergai submit resnet50 --inputs 'photos/*.jpg' --output results/ --qos 2h[/bold]",
)
@on_gateway
def submit(
    gateway: GatewayAddress,
    engine: ServedEngine,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help=f"{INPUTS_HELP}.", show_default=False)
    ] = None,
    *,
    queries: Queries = None,
    own: OwnInputs,
    terms: JobTerms,
    watch: Watch = None,
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
    is_watched = bool(patterns) if watch is None else watch
    options = terms.options()

    async def run_over_inputs(client: Client) -> None:
        # Imported here to keep NumPy out of jobs on samples.
        from synergai.cli.own_data import OwnDataJob

        job = OwnDataJob(client, engine, patterns, own, terms)
        await job.run(detach=not is_watched, as_json=as_json)

    async def run_on_samples(client: Client) -> None:
        job = await client.submit(engine, queries=queries, idempotency_key=terms.key, **options)
        if is_watched:
            typer.echo(f"job {job.id}", err=True)
            await follow(job, as_json=as_json)
            return
        status = await print_accepted(job, as_json=as_json)
        if status.state is JobState.REJECTED:
            status.raise_unless_succeeded()

    gateway.call(run_over_inputs if patterns else run_on_samples)
