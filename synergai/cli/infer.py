"""``synergai infer``: one query from the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from synergai.cli.gateway_client import GatewayAddress, ServedEngine, on_gateway
from synergai.cli.options import AsJson, MinAccuracy, Priority, parse_duration
from synergai.cli.output import format_seconds, print_facts, print_json, print_table
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from synergai.client.client import Client
    from synergai.client.requests import QueryOptions
    from synergai.client.streaming import InferResult
    from synergai.domain import Engine


app: Final = typer.Typer(rich_markup_mode="rich")

_PREVIEW: Final = 8
"""Elements of a tensor shown in a table."""
WITH_BACKGROUND: Final = 1001
_TOP: Final = 5
"""Classes shown for each row of scores, unless the user chooses."""
_BOX: Final = ("image", "class", "score", "ymin", "xmin", "ymax", "xmax")
_CLASS: Final = ("output", "row", "class", "score")
_VALUES: Final = ("output", "datatype", "shape", "values")
_MAX_CLASSES: Final = 100_000
"""Longest row that is read as the scores of classes."""
_TIMINGS: Final = (
    ("queue", "synergai_queue_us"),
    ("transfer, loading", "synergai_transfer_us"),
    ("compute", "synergai_compute_us"),
    ("estimated", "synergai_estimated_us"),
)


class QueryTerms(NamedTuple):
    """Options of a query other than its values."""

    min_accuracy: MinAccuracy = 0.0
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Fail if the query has no response within this time, such as 500ms. Connecting "
            "does not count.",
        ),
    ] = None
    priority: Priority = 0

    def options(self) -> QueryOptions:
        """Return the options of the client's call."""
        deadline_s = None if self.deadline is None else parse_duration(self.deadline, "--deadline")
        if deadline_s is not None and not deadline_s > 0:
            raise InvalidInput(f"the deadline must be positive, not {deadline_s:g} s")
        return {
            "min_accuracy": self.min_accuracy,
            "deadline": deadline_s,
            "priority": self.priority,
        }


@app.command(epilog="Example: [bold]synergai infer onnx_resnet50_op11 --input @cat.jpg[/bold]")
@on_gateway
def infer(
    gateway: GatewayAddress,
    engine: ServedEngine,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]VALUE",
            help="An input's value: @FILE (.npy, .jpg or .png), a JSON literal, or text. NAME is "
            "optional for an engine with one input.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this output; repeatable."),
    ] = None,
    *,
    terms: QueryTerms,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show where the time went, and the worker.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run one query and print the result: classes, boxes, or the output tensors."""
    options = terms.options()
    if timings:
        options["parameters"] = {"synergai_timings": True}

    async def query(client: Client) -> tuple[Engine, InferResult]:
        description = await client.engine(engine)
        requested = list(outputs or ())
        if not requested and description.postprocess:
            requested = [_default_output(description)]
        values = parse_inputs(inputs or (), description)
        options["outputs"] = requested
        return description, await client.infer(engine, values, **options)

    description, result = gateway.call(query)
    if as_json:
        print_json(_as_json(result))
        return
    print_outputs(description, result.outputs)
    if result.version:
        typer.echo(f"answered by version {result.version} of {result.engine}")
    if timings:
        _print_timings(result.parameters)


def _default_output(engine: Engine) -> str:
    """Return the output to print: class scores if the engine has them, or a derived output."""
    first = engine.outputs[0]
    if engine.postprocess == "classes" and first.datatype == "FP32" and len(first.shape) == 2:
        return first.name
    return engine.postprocess


def _as_json(result: InferResult) -> dict[str, Any]:
    return {
        "engine": result.engine,
        "version": result.version,
        "outputs": {name: tensor_as_json(array) for name, array in result.outputs.items()},
        "parameters": dict(result.parameters),
    }


def tensor_as_json(array: NDArray[Any]) -> dict[str, Any]:
    """Return a tensor's datatype, shape and elements for JSON."""
    return {
        "datatype": _datatype(array),
        "shape": list(array.shape),
        "data": [_element(element) for element in array.ravel().tolist()],
    }


def _datatype(array: NDArray[Any]) -> str:
    from synergai.wire.arrays import datatype_of

    return "BYTES" if array.dtype.hasobject else datatype_of(array.dtype)


def _element(element: object) -> object:
    """Return an element for JSON, which has no NaN and no infinity: their names stand for them."""
    match element:
        case bytes():
            try:
                return element.decode()
            except UnicodeDecodeError:
                raise InvalidInput(
                    f"the element {element[:40]!r} is not UTF-8 text, which JSON needs; 'synergai "
                    "submit --output' writes files"
                ) from None
        case float() if not math.isfinite(element):
            return "NaN" if math.isnan(element) else "Infinity" if element > 0 else "-Infinity"
    return element


# --- tables -----------------------------------------------------------------------------


def print_outputs(engine: Engine, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Print an answer: one table of classes, one of boxes and one of other outputs.

    Only an engine that classifies has its best classes shown.
    """
    boxes: list[tuple[str, ...]] = []
    classes: list[tuple[str, ...]] = []
    derived: list[tuple[str, ...]] = []
    values: list[tuple[str, ...]] = []
    notes: list[str] = []
    classifies = engine.postprocess == "classes"
    for name, array in outputs.items():
        if name == "boxes" and engine.postprocess == "boxes" and array.ndim == 2:
            boxes += map(_box, array.tolist())
        elif name == "classes" and classifies:
            derived += ((name, str(n), str(c)) for n, c in enumerate(array.ravel()))
        elif classifies and _has_scores(array):
            # ImageNet networks have one class more than the labels: the background, at index 0.
            background = int(array.shape[1] == WITH_BACKGROUND)
            classes += ((name, *row) for row in _classes(array, background))
            if array.shape[1] > _TOP:
                notes.append(f"{name}: top {_TOP} of {array.shape[1]:,}")
        else:
            values.append(summary(name, array))
    if classes:  # a table for both; a derived class has no score
        classes, derived = [(*row, "") for row in derived] + classes, []
    tables = ((_BOX, boxes), (_CLASS[:-1], derived), (_CLASS, classes), (_VALUES, values))
    for columns, rows in tables:
        if rows:
            print_table(columns, rows)
    for note in notes:
        typer.echo(note)


def _box(row: list[float]) -> tuple[str, ...]:
    image, ymin, xmin, ymax, xmax, score, number = row
    corners = (f"{value:.3f}" for value in (ymin, xmin, ymax, xmax))
    return (str(int(image)), str(int(number)), f"{score:.3f}", *corners)


def _has_scores(array: NDArray[Any]) -> bool:
    """Return whether each row of the output can be read as the scores of classes."""
    return array.dtype.kind == "f" and array.ndim == 2 and 1 < array.shape[1] <= _MAX_CLASSES


def _classes(array: NDArray[Any], first: int) -> Iterator[tuple[str, ...]]:
    for number, row in enumerate(array):
        for index in (-row).argsort(kind="stable")[:_TOP]:
            yield str(number), str(index - first), f"{row[index]:.4g}"


def summary(name: str, array: NDArray[Any]) -> tuple[str, ...]:
    """Return the name, datatype, shape and first elements of a tensor."""
    first = array.ravel()[:_PREVIEW]
    # Python's floats would have digits beyond the precision of the tensor.
    values = [
        each.decode(errors="backslashreplace") if isinstance(each, bytes) else str(_element(each))
        for each in (first if array.dtype.kind == "f" else first.tolist())
    ]
    more = ", …" if array.size > _PREVIEW else ""
    return name, _datatype(array), str(list(array.shape)), ", ".join(values) + more


def _print_timings(parameters: Mapping[str, object]) -> None:
    facts = [
        (name, format_seconds(value / 1e6))
        for name, key in _TIMINGS
        if isinstance(value := parameters.get(key), int) and (value or name != "estimated")
    ]
    facts += [
        (name, str(parameters[key]).replace(" ", " → "))
        for name, key in (
            ("worker", "synergai_worker"),
            ("configuration", "synergai_configuration"),
        )
        if key in parameters
    ]
    print_facts(facts)


_IMAGES: Final = frozenset((".jpg", ".jpeg", ".png"))
_SHOWN: Final = 60
"""Characters of a literal that a message repeats."""


def parse_inputs(texts: Iterable[str], engine: Engine) -> dict[str, Any]:
    """Return the value of each input by name: arrays, lists, scalars, texts, or encoded images."""
    names = [spec.name for spec in engine.inputs]
    values: dict[str, Any] = {}
    for text in texts:
        name, value = _parse(text, names, engine)
        if name in values:
            raise InvalidInput(f"input {name!r} is given twice")
        values[name] = value
    if missing := [name for name in names if name not in values]:
        raise InvalidInput(f"no value for input {missing[0]!r}: {usage(engine)}")
    return values


def usage(engine: Engine) -> str:
    """Return the engine's ``--input`` options with their datatypes and shapes."""
    image = f" or {engine.inputs[0].name}=@image.jpg" if engine.preprocess else ""
    inputs = ", ".join(f"--input {spec.name}=<{spec.kind}>" for spec in engine.inputs)
    return f"it takes {inputs}{image}"


def _parse(text: str, names: list[str], engine: Engine) -> tuple[str, Any]:
    # Literals may contain '=', so known names are matched first.
    name, equals, rest = text.partition("=")
    if not equals or (name not in names and text.startswith(("@", "[", '"'))):
        if len(names) != 1:
            raise InvalidInput(f"{text!r} does not name its input: {usage(engine)}")
        name, rest = names[0], text
    if name not in names:
        raise InvalidInput(f"engine {engine.name!r} has no input {name!r}: {usage(engine)}")
    if rest.startswith("@"):
        return name, _read(Path(rest[1:]), engine)
    return name, _literal(rest, engine.inputs[names.index(name)].datatype)


def _literal(text: str, datatype: str) -> Any:
    """Return the value of a JSON literal; for text inputs, of a JSON list or string only."""
    if datatype == "BYTES" and not text.startswith(("[", '"')):
        return text
    from synergai.data.row_files import finite_float

    try:
        return json.loads(text, parse_float=finite_float)
    except (ValueError, RecursionError):
        if text.startswith("["):
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise InvalidInput(f"{shown!r} is not valid JSON") from None
        return text


def _read(path: Path, engine: Engine) -> Any:
    # Imported here to keep NumPy out of `--help`.
    from numpy.lib.format import read_array

    suffix = path.suffix.lower()
    if not path.is_file():
        raise InvalidInput(f"{path}: {'not a regular' if path.exists() else 'no such'} file")
    try:
        if suffix == ".npy":
            with path.open("rb") as file:
                return read_array(file, allow_pickle=False)
        if suffix in _IMAGES:
            return _image(path, engine)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not a readable {suffix} file: {error}") from error
    raise InvalidInput(f"{path}: not a .npy, .jpg or .png file")


def _image(path: Path, engine: Engine) -> bytes:
    if not engine.preprocess and engine.inputs[0].datatype != "BYTES":
        raise InvalidInput(
            f"engine {engine.name!r} takes tensors only; to send it images, "
            'set preprocess = "resnet50", "mobilenet" or "ssd" in its engine.toml'
        )
    return path.read_bytes()
