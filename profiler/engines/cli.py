"""``synergai engines``: engines of the model directory, and those that a gateway serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
from rich.console import Console
from rich.filesize import decimal

from profiler.engines import served_engines, stages, variants
from synergai.cli.gateway_client import GatewayAddress
from synergai.cli.options import DEFAULT_MODELS, AsJson, Models
from synergai.cli.output import (
    cut_text,
    format_percent,
    print_facts,
    print_json,
    print_table,
    to_jsonable,
)
from synergai.client.target import TARGET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.progress import TaskID
    from rich.text import Text

    from profiler.zoo.listing import EngineListing
    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition

app: Final = typer.Typer(
    help="Build, add, list, inspect, load, unload and distribute inference engines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


_PUSHED: Final = "'synergai engines store' lists the engines that were pushed to a gateway"


@app.command("list", epilog="Example: [bold]synergai engines list --models models --json[/bold]")
def list_engines(
    models: Models = DEFAULT_MODELS,
    zoo: Annotated[
        bool, typer.Option("--catalogue", help="Also list the engines that can be built.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the engines in the model directory.

    Engines that were pushed are not in it: 'synergai engines store' lists them.

    No model is loaded. Faults are cut to the terminal's width; --json has the whole text.
    """
    from profiler.zoo.listing import list_engines

    rows = [row for row in list_engines(models) if zoo or row.state != "not built"]
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(
            f"no engine in {models}; add a model file by 'synergai engines add FILE', "
            f"or see 'synergai engines list --catalogue' for engines that can be built; {_PUSHED}"
        )
        return
    columns = ("engine", "size", "backend", "accuracy", "source")
    print_table(columns, map(_listing_row, rows))
    for row in rows:
        if note := variants.accuracy_note(row.name, row.without_accuracy, row.variants):
            typer.echo(note)
    typer.echo(_PUSHED, err=True)


@app.command(epilog="Example: [bold]synergai engines build onnx_mobilenet_op11 onnx_digits[/bold]")
def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENGINE]...", help="Default: the whole zoo."),
    ] = None,
    models: Models = DEFAULT_MODELS,
    replace: Annotated[bool, typer.Option("--replace", help="Rebuild existing engines.")] = False,
) -> None:
    """Build engines of the zoo; nothing is downloaded."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from profiler.zoo import recipes as zoo
    from synergai.models.directory import ModelDirectory

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
    _print_definitions([directory.get(recipe.name) for recipe in recipes])


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
    target: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Show an engine that this gateway serves instead. Default: SYNERGAI_TARGET, "
            "for an engine that is not in the model directory.",
        ),
    ] = None,
) -> None:
    """Show the inputs, outputs and format of a model.

    NAME/2 is version 2 of an engine, and NAME/2.int8 a variant of it. Without a version, it is the
    highest one that is usable, which requests get by default; without a variant, the first one.
    """
    from synergai.errors import NotFound

    if target is None:
        try:
            _show_model(_find_model(engine, models), as_json=as_json)
        except NotFound:
            target = os.environ.get(TARGET_VARIABLE, "")
            if not target:
                raise
    if target is not None:
        served = GatewayAddress(target).call(lambda gw: gw.engine(engine))
        facts = {name: getattr(served, name) for name in _SERVED_FACTS}
        if as_json:
            print_json(facts)
        else:
            print_facts(
                (name, _format_tensors(value) if isinstance(value, tuple) else value)
                for name, value in facts.items()
                if value
            )


def _show_model(found: _FoundModel, *, as_json: bool) -> None:
    from profiler.model_description import describe

    description = describe(found.path, found.signature)
    if as_json:
        facts = to_jsonable(description)
        if found.version:
            facts |= {
                "version": found.version,
                "other_versions": found.others,
                "fault": found.fault,
            }
        print_json({"file": str(found.path), **facts.pop("contents"), **facts})
        return
    others = f" (others: {', '.join(found.others)})" if found.others else ""
    contents = description.contents
    print_facts(
        (
            ("file", str(found.path)),
            *((("version", f"{found.version}{others}"),) if found.version else ()),
            ("backend", description.backend),
            ("inputs", _format_tensors(contents.inputs) or "unknown"),
            ("outputs", _format_tensors(contents.outputs) or "unknown"),
            ("format", contents.format),
            ("size", f"{description.size_bytes:,} bytes"),
            ("sha256", description.digest),
            *((("variants", ", ".join(found.variants)),) if found.variants else ()),
            ("written by", contents.producer or "unknown"),
            ("weights", _weights_text(found.path, external=contents.external_data)),
            *(("note", note) for note in contents.notes),
            *((("not used", found.fault),) if found.fault else ()),
        )
    )


def _weights_text(model: Path, *, external: bool) -> str:
    if external:
        return "in other files, which belong to the model"
    return "in the folder" if model.is_dir() else "in the file"


_SERVED_FACTS: Final = (
    *("name", "version", "backend", "inputs", "outputs", "preprocess", "postprocess"),
    *("digest", "unverified"),
)
"""What a gateway says of an engine."""


class _FoundModel(NamedTuple):
    """A model file and, if it is an engine's, its version and variants.

    Attributes:
        others: the other versions of the engine.
        fault: why it is not used; empty if it is.
    """

    path: Path
    signature: str = ""
    version: str = ""
    others: Sequence[str] = ()
    variants: Sequence[str] = ()
    fault: str = ""


def _find_model(engine: str, models: Path) -> _FoundModel:
    from synergai.errors import EngineUnusable
    from synergai.models.directory import ModelDirectory
    from synergai.models.formats.model_files import is_saved_model
    from synergai.names import parse_version, split_version, versioned

    path = Path(engine)
    if (path.suffix and path.exists()) or is_saved_model(path):
        return _FoundModel(path)
    (name, version), variant = split_version(engine), ""
    if version[:1].isdigit():
        version, variant = parse_version(version)
        name = versioned(name, version)
    else:  # the path of a model that is not there
        name = engine
    directory = ModelDirectory(models)
    known = directory.versions(split_version(name)[0])
    if known and "/" not in engine:
        definition = ([each for each in known if not each.fault] or known)[-1]
    else:
        definition = directory.get(name)
    if definition.fault:
        raise EngineUnusable(f"engine {engine!r}: {definition.fault}")
    model, fault = definition.of_variant(variant), ""
    try:
        model.verified_digest()
    except EngineUnusable as error:
        fault = str(error)
    return _FoundModel(
        model.file,
        model.signature,
        split_version(definition.name)[1],
        [split_version(each.name)[1] for each in known if each.name != definition.name],
        [each.name for each in definition.variants],
        fault,
    )


_Model = Annotated[
    Path,
    typer.Argument(
        help="The model: an .onnx, .tflite or frozen .pb file, or a SavedModel's folder."
    ),
]
_Version = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="Add it as version N of the engine. Default: the only version.",
    ),
]
_Inputs = Annotated[
    str,
    typer.Option(
        metavar="NAME,…",
        help="Input tensors of a frozen graph, such as input:0. Default: its placeholders.",
    ),
]
_Outputs = Annotated[
    str,
    typer.Option(
        metavar="NAME,…",
        help="Output tensors of a frozen graph. Default: tensors that no node consumes.",
    ),
]
_RecipeName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The file is the one that MLPerf published for this engine: take its name, "
        "tensors, pre- and post-processing from the recipe.",
    ),
]
_Signature = Annotated[
    str,
    typer.Option(
        help="Signature of a SavedModel or TFLite file. Default: serving_default of a "
        "SavedModel, the first graph of a TFLite file."
    ),
]


@app.command(epilog="Example: [bold]synergai engines add ~/resnet50.onnx --name resnet50[/bold]")
def add(
    model: _Model,
    name: Annotated[
        str | None,
        typer.Option(help="The engine's name. Default: the model's file name without suffix."),
    ] = None,
    version: _Version = "",
    inputs: _Inputs = "",
    outputs: _Outputs = "",
    recipe: _RecipeName = "",
    signature: _Signature = "",
    models: Models = DEFAULT_MODELS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an engine of the same name, or the version.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Load the model to check it.")
    ] = True,
) -> None:
    """Check a model, copy it into the model directory and record its digest.

    The model is loaded once, as an agent does. One that cannot be loaded is not added.
    """
    from profiler import installation
    from profiler.engines.check import StagedChecks
    from profiler.zoo.listing import find_published

    published = find_published(recipe) if recipe else None
    if published is not None:
        published.check(model)
    checks = StagedChecks(enabled=check)
    definition = installation.add_model(
        models,
        model,
        name=name or (published.name if published else None),
        version=version,
        inputs=_split_names(inputs) or (published.inputs if published else ()),
        outputs=_split_names(outputs) or (published.outputs if published else ()),
        keys=published.keys if published else {},
        signature=signature,
        replace=replace,
        check=checks,
    )
    typer.echo(f"{definition.name}: {definition.file}")
    typer.echo(checks.result(definition.name))
    _print_found_by(1)


for _module in (served_engines, variants, stages):
    app.add_typer(_module.app)


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _print_definitions(definitions: Sequence[EngineDefinition]) -> None:
    for definition in definitions:
        for variant in definition.variants:
            typer.echo(f"{definition.name}, variant {variant.name}: {variant.file}")
        if not definition.variants:
            typer.echo(f"{definition.name}: {definition.file}")
    _print_found_by(len(definitions))


def _print_found_by(count: int) -> None:
    """Say that a server need not be restarted."""
    them = "it" if count == 1 else "them"
    typer.echo(f"a server that runs on this model directory finds {them} within seconds", err=True)


def _listing_row(row: EngineListing) -> tuple[str | Text, ...]:
    size = row.state if row.size_bytes is None else decimal(row.size_bytes)
    # The details after the first comma are in the JSON output only.
    source: str | Text = row.source.partition(",")[0]
    if row.fault:
        source = cut_text(row.fault, "red")
    return row.name, size, row.backend, format_percent(row.accuracy), source


def _format_tensors(specs: Iterable[TensorSpec]) -> str:
    return "\n".join(f"{spec.name}  {spec.kind}" for spec in specs)
