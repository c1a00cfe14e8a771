"""``synergai engines``: engines of the model directory, and those that a gateway serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal

from synergai.cli import engine_store
from synergai.cli.gateway_client import call_gateway
from synergai.cli.options import AsJson, Target, TlsCa, TokenFile
from synergai.cli.output import (
    cut_text,
    format_count,
    print_facts,
    print_json,
    print_table,
    to_jsonable,
)
from synergai.client.target import DEFAULT_TARGET
from synergai.models.warmup import ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.progress import TaskID
    from rich.text import Text

    from synergai.client.client import Client
    from synergai.client.version_policy import VersionFigures, VersionPolicy
    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition
    from synergai.zoo.listing import EngineListing

app: Final = typer.Typer(
    help="Build, fetch, add, list, inspect, load, unload and distribute inference engines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Models = Annotated[
    Path,
    typer.Option("--models", metavar="DIR", help="The model directory."),
]
ServedEngine = Annotated[str, typer.Argument(metavar="ENGINE", help="Name of a served engine.")]
DEFAULT_MODELS: Final = Path("models")


@app.command("list", epilog="Example: [bold]synergai engines list --models models --json[/bold]")
def list_engines(
    engines: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENGINE]...", help="Show all facts of these engines."),
    ] = None,
    models: Models = DEFAULT_MODELS,
    zoo: Annotated[
        bool, typer.Option("--catalogue", help="Also list the engines that can be built.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the engines in the model directory.

    No model is loaded. "Published" is the accuracy, for detectors the mAP, of the weights that
    MLPerf published under the name; engines built here have other weights. Faults are cut to the
    terminal's width; name an engine, or use --json, for the whole text.
    """
    from synergai.errors import NotFound
    from synergai.zoo.listing import list_engines

    rows = [row for row in list_engines(models) if zoo or engines or row.state != "not built"]
    if engines:
        by_name = {row.name: row for row in rows}
        for name in engines:
            if name not in by_name:
                raise NotFound(f"there is no engine {name!r} in {models}, nor in the catalogue")
        rows = [by_name[name] for name in engines]
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(
            f"no engine in {models}; add a model file by 'synergai engines add FILE', "
            "or see 'synergai engines list --catalogue' for engines that can be built"
        )
        return
    if engines:
        for row in rows:
            print_facts(_listing_facts(row))
        return
    columns = ("engine", "size", "backend", "accuracy", "published", "source")
    print_table(columns, map(_listing_row, rows))


@app.command(epilog="Example: [bold]synergai engines build onnx_mobilenet_op11 onnx_digits[/bold]")
def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENGINE]...", help="Default: the whole zoo."),
    ] = None,
    models: Models = DEFAULT_MODELS,
    replace: Annotated[bool, typer.Option("--replace", help="Rebuild existing engines.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build engines of the zoo; nothing is downloaded."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from synergai.models.directory import ModelDirectory
    from synergai.zoo import build as zoo

    recipes = [zoo.find_recipe(name) for name in names or zoo.RECIPES]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for recipe in recipes:
            task = progress.add_task(f"building {recipe.name}", total=1.0)

            def on_progress(share: float, task: TaskID = task) -> None:
                progress.update(task, completed=share)

            if not replace and zoo.is_built(recipe.name, models):
                progress.update(task, description=f"{recipe.name} is already built", completed=1.0)
            else:
                zoo.build(recipe.name, models, on_progress)
    directory = ModelDirectory(models)
    _print_definitions([directory.get(recipe.name) for recipe in recipes], as_json=as_json)


@app.command(epilog="Example: [bold]synergai engines fetch onnx_resnet50_op11[/bold]")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="ENGINE...")],
    models: Models = DEFAULT_MODELS,
    mirror: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="Mirror server with the same paths."),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an engine of the same name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download and verify the weights that MLPerf published for an engine.

    Interrupted downloads are resumed. If no digest was published, the digest of the first download
    is recorded and later downloads must match it.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from synergai.models.directory import ModelDirectory
    from synergai.zoo.fetch import fetching

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in names:
            if fetching.is_fetched(name, models):
                progress.add_task(f"{name} is already fetched", total=1, completed=1)
                continue
            task = progress.add_task(f"fetching {name}", total=None)

            def on_progress(here: int, total: int, task: TaskID = task) -> None:
                progress.update(task, completed=here, total=total)

            fetching.fetch(name, models, mirror=mirror, replace=replace, on_progress=on_progress)
    directory = ModelDirectory(models)
    _print_definitions([directory.get(name) for name in names], as_json=as_json)


@app.command(
    epilog=(
        "Examples: [bold]synergai engines inspect onnx_digits[/bold], or "
        "[bold]synergai engines inspect some.onnx[/bold]"
    )
)
def inspect(
    engine: Annotated[str, typer.Argument(help="An engine's name, or the path of a model.")],
    models: Models = DEFAULT_MODELS,
    as_json: AsJson = False,
) -> None:
    """Show the inputs, outputs and format of a model."""
    from synergai.errors import EngineUnusable
    from synergai.models.directory import ModelDirectory
    from synergai.models.formats.inspect import describe
    from synergai.models.formats.model_files import is_saved_model

    path = Path(engine)
    if not (path.suffix and path.exists()) and not is_saved_model(path):
        definition = ModelDirectory(models).get(engine)
        if definition.fault:
            raise EngineUnusable(f"engine {engine!r}: {definition.fault}")
        path = definition.file
    description = describe(path)
    if as_json:
        facts = to_jsonable(description)
        print_json({"file": str(path), **facts.pop("contents"), **facts})
        return
    contents = description.contents
    print_facts(
        (
            ("file", str(path)),
            ("backend", description.backend),
            ("inputs", _format_tensors(contents.inputs)),
            ("outputs", _format_tensors(contents.outputs)),
            ("format", contents.format),
            ("parameters", format_count(contents.parameters)),
            ("size", f"{description.size_bytes:,} bytes"),
            ("sha256", description.digest),
            ("written by", contents.producer or "unknown"),
            (
                "weights",
                "in other files: save the model as one file to serve it"
                if contents.external_data
                else "in the file",
            ),
        )
    )


@app.command(epilog="Example: [bold]synergai engines add ~/resnet50.onnx --name resnet50[/bold]")
def add(
    model: Annotated[
        Path,
        typer.Argument(
            help="The model: an .onnx, .tflite or frozen .pb file, or a SavedModel's folder."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="The engine's name. Default: the model's file name without suffix."),
    ] = None,
    version: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Add it as version N of the engine, beside others. Default: the only version.",
        ),
    ] = "",
    title: Annotated[str, typer.Option(help="Human-readable title.")] = "",
    inputs: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Input tensors of a frozen graph, such as input:0. Default: its placeholders.",
        ),
    ] = "",
    outputs: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Output tensors of a frozen graph. Default: tensors that no node consumes.",
        ),
    ] = "",
    models: Models = DEFAULT_MODELS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an engine of the same name, or the version.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Load the model to check it.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Check a model, copy it into the model directory and record its digest.

    The model is loaded once, as an agent does. One that cannot be loaded is not added.
    """
    from synergai.cli.self_check import SelfCheck
    from synergai.models import installation

    self_check = SelfCheck(enabled=check)
    definition = installation.add_model(
        models,
        model,
        name=name,
        version=version,
        title=title,
        inputs=_split_names(inputs),
        outputs=_split_names(outputs),
        replace=replace,
        check=self_check,
    )
    self_check.remember(definition)
    if as_json:
        print_json(self_check.listing(definition))
        return
    typer.echo(f"{definition.name}: {definition.file}")
    typer.echo(f"{format_count(self_check.parameters)} parameters, {self_check.result}")


@app.command(epilog="Example: [bold]synergai engines load onnx_digits[/bold]")
def load(
    engine: ServedEngine,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Load an engine on every worker that has it, ahead of the first query.

    Returns when the first worker is ready. An unloaded engine is put back in service.
    """
    call_gateway(target, tls_ca, token_file, lambda client: client.load(engine))
    typer.echo(f"{engine} is loaded")


@app.command(epilog="Example: [bold]synergai engines unload onnx_digits[/bold]")
def unload(
    engine: ServedEngine,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Take an engine out of service and evict it from workers, until it is loaded again.

    Work accepted before is completed. Model files are kept.
    """
    call_gateway(target, tls_ca, token_file, lambda client: client.unload(engine))
    typer.echo(f"{engine} is unloaded")


@app.command(epilog="Example: [bold]synergai engines forget onnx_digits[/bold]")
def forget(
    engine: ServedEngine,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Let another engine take over the name of one that clients have used.

    Workers whose engine differs from the one in service are not used for it (synergai workers shows
    which). This decides again which one is in service, such as after the workers that served it
    were replaced.
    """
    call_gateway(target, tls_ca, token_file, lambda client: client.forget(engine))
    typer.echo(f"the description of {engine} is forgotten")


@app.command(
    epilog=(
        "Examples: [bold]synergai engines rollout resnet50 --to 2 --share 10%[/bold], then "
        "[bold]synergai engines rollout resnet50 --promote[/bold]"
    )
)
def rollout(
    engine: ServedEngine,
    to: Annotated[str, typer.Option(metavar="N", help="Give version N a share.")] = "",
    share: Annotated[
        str, typer.Option(metavar="PERCENT", help="The share of requests, such as 10%.")
    ] = "",
    promote: Annotated[
        bool, typer.Option("--promote", help="End the rollout with the new version.")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="End the rollout with the old version.")
    ] = False,
    pin: Annotated[str, typer.Option(metavar="N", help="Give version N all requests.")] = "",
    latest: Annotated[
        bool, typer.Option("--latest", help="Give the highest usable version all requests.")
    ] = False,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Show or change which version of an engine requests get that name none.

    A new version gets requests once a worker has loaded it; the command returns then. If none can,
    the rollout is rolled back. The same request id always gets the same version, and growing the
    share only moves requests to the new version. Without options, shows the state of the rollout.
    """
    from synergai.errors import InvalidInput

    if sum(map(bool, (to, promote, rollback, pin, latest))) > 1:
        raise InvalidInput("use only one of --to, --promote, --rollback, --pin and --latest")
    if bool(to) != bool(share):
        raise InvalidInput("--to needs --share, and --share needs --to")
    part = _parse_share(share) if share else 0.0

    async def change(client: Client) -> VersionPolicy:
        if to:
            return await client.roll_out(engine, to, part)
        if promote:
            return await client.promote(engine)
        if rollback:
            return await client.roll_back(engine)
        if pin or latest:
            return await client.pin(engine, pin)
        return await client.version_policy(engine)

    policy = call_gateway(target, tls_ca, token_file, change)
    if as_json:
        print_json(policy)
        return
    typer.echo(f"{engine}: {_policy_text(policy)}")
    if policy.reason:
        typer.echo(f"the last rollout was rolled back: {policy.reason}")
    columns = ("version", "state", "requests", "errors", "mean", "queries", "accuracy")
    print_table(columns, map(_version_row, policy.versions))


def _parse_share(text: str) -> float:
    """Return a share from 0 to 1, written as ``10%``.

    Raises:
        InvalidInput: it is not a percentage from 0 % to 100 %.
    """
    from synergai.errors import InvalidInput

    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not (text.endswith("%") and 0.0 <= percent <= 100.0):
        raise InvalidInput(f"--share: {text!r} is not a percentage from 0% to 100%, such as 10%")
    return percent / 100.0


def _policy_text(policy: VersionPolicy) -> str:
    if policy.target:
        return (
            f"version {policy.target} gets {policy.share * 100:.4g}% of requests, version "
            f"{policy.base} the others"
        )
    if policy.base:
        return f"version {policy.base} gets all requests"
    return "the highest usable version gets all requests"


def _version_row(row: VersionFigures) -> tuple[str | Text, ...]:
    state: str | Text = "ready" if row.prepared else "in service"
    if row.reason:
        state = cut_text(row.reason, "red")
    accuracy = row.correct / row.labelled if row.labelled else None
    mean = f"{row.mean_s * 1e3:.3g} ms" if row.mean_s else ""
    counts = (f"{row.requests:,}", f"{row.errors:,}", mean, f"{row.queries:,}")
    return row.version, state, *counts, _percent(accuracy)


engine_store.register(app)


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _print_definitions(definitions: Sequence[EngineDefinition], *, as_json: bool) -> None:
    if as_json:
        print_json([_describe(definition) for definition in definitions])
        return
    for definition in definitions:
        typer.echo(f"{definition.name}: {definition.file}")


def _describe(definition: EngineDefinition) -> EngineListing:
    from synergai.zoo.listing import list_present

    return list_present(definition)


def _listing_row(row: EngineListing) -> tuple[str | Text, ...]:
    size = row.state if row.size_bytes is None else decimal(row.size_bytes)
    published = (
        f"mAP {row.published_map:.3f}" if row.published_map else _percent(row.published_accuracy)
    )
    # The details after the first comma are in the JSON output only.
    source: str | Text = row.source.partition(",")[0]
    if row.fault:
        source = cut_text(row.fault, "red")
    elif row.unverified:
        source = cut_text(f"unverified: {row.unverified}", "yellow")
    return row.name, size, row.backend, _percent(row.accuracy), published, source


def _listing_facts(row: EngineListing) -> Iterator[tuple[str, str | Text]]:
    """Return the known facts of an engine."""
    facts = to_jsonable(row)
    for name in ("accuracy", "published_accuracy"):
        facts[name] = _percent(facts[name])
    if row.unverified:
        facts["unverified"] = f"{row.unverified}; {ADVICE}"
    for name, value in facts.items():
        if value not in (None, ""):
            yield name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2%}"


def _format_tensors(specs: Iterable[TensorSpec]) -> str:
    return "\n".join(
        f"{spec.name}  {spec.datatype}  [{', '.join('?' if n < 0 else str(n) for n in spec.shape)}]"
        for spec in specs
    )
