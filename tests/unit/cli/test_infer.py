"""``synergai infer``: the values of inputs, and what is printed."""

import asyncio
import io
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from synergai.cli.gateway_client import GatewayAddress
from synergai.cli.infer import app, parse_inputs, print_outputs, summary, tensor_as_json
from synergai.cli.output import to_jsonable
from synergai.client.streaming import InferResult
from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput
from tests.engines import new_engine


def an_engine(postprocess: str = "") -> Engine:
    return new_engine(
        "digits",
        (TensorSpec("x", "FP32", (-1,)),),
        (TensorSpec("y", "FP32", (-1, -1)),),
        postprocess=postprocess,
    )


def test_scores_are_sorted_only_for_an_engine_that_classifies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sums = {"y": np.array([[1, 3, 2], [6, 5, 4]], np.float32)}
    print_outputs(an_engine(), sums)
    values = capsys.readouterr().out
    assert "1.0, 3.0, 2.0, 6.0, 5.0, 4.0" in values
    assert "class" not in values

    print_outputs(an_engine("classes"), sums)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["y", "0", "1", "3"]
    assert rows[3] == ["y", "1", "0", "6"]


def test_classes_alone_have_no_column_of_scores(capsys: pytest.CaptureFixture[str]) -> None:
    classes = {"classes": np.array([3, 5])}
    print_outputs(an_engine("classes"), classes)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["output", "row", "class"]
    assert lines[2].split() == ["classes", "0", "3"]

    print_outputs(an_engine("classes"), {**classes, "y": np.ones((1, 2), np.float32)})
    assert capsys.readouterr().out.splitlines()[0].split() == ["output", "row", "class", "score"]


def test_cut_scores_say_of_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"y": np.arange(1001, dtype=np.float32)[None]}
    print_outputs(an_engine("classes"), scores)
    assert capsys.readouterr().out.splitlines()[-1] == "y: top 5 of 1,001"


def test_deadline_is_that_of_the_query_not_of_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float | None] = []

    class Client:
        async def engine(self, _name: str) -> Engine:
            return an_engine()

        async def infer(self, *_: object, deadline: float | None, **__: object) -> InferResult:
            deadlines.append(deadline)
            return InferResult({"y": np.ones(1, np.float32)})

    def call(_: GatewayAddress, query: Callable[[Client], Coroutine[Any, Any, object]]) -> object:
        return asyncio.run(query(Client()))

    monkeypatch.setattr("synergai.cli.gateway_client.GatewayAddress.call", call)
    for options in (["--deadline", "10s"], []):
        result = CliRunner().invoke(app, ["digits", "--input", "[1]", *options])
        assert result.exception is None
    assert deadlines == [10.0, None]


@pytest.mark.parametrize("deadline", ["0", "-1", "nan"])
def test_deadline_must_be_positive(deadline: str) -> None:
    result = CliRunner().invoke(app, ["digits", "--deadline", deadline])
    assert isinstance(result.exception, InvalidInput)
    assert f"the deadline must be positive, not {deadline} s" in str(result.exception)


def test_version_that_answered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = InferResult({"y": np.ones((1, 1), np.float32)}, engine="digits", version="2")
    monkeypatch.setattr(
        "synergai.cli.gateway_client.GatewayAddress.call", lambda *_: (an_engine(), result)
    )
    ran = CliRunner().invoke(app, ["digits", "--input", "1"])
    assert ran.output.splitlines()[-1] == "answered by version 2 of digits"


def test_workers_of_stages_are_named_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, bool | int | float | str] = {
        "synergai_worker": "edge cloud",
        "synergai_transfer_us": 1_200,
    }
    result = InferResult({"y": np.ones((1, 1), np.float32)}, parameters=facts)
    monkeypatch.setattr(
        "synergai.cli.gateway_client.GatewayAddress.call", lambda *_: (an_engine(), result)
    )
    shown = CliRunner().invoke(app, ["digits", "--input", "1", "--timings"]).output
    assert "edge → cloud" in shown
    assert "transfer, loading  1.2 ms" in shown


def test_numbers_that_json_lacks_have_names() -> None:
    array = np.array([[1.5, np.nan], [np.inf, -np.inf]], np.float32)
    printed = json.dumps(to_jsonable(tensor_as_json(array)), allow_nan=False)
    found = json.loads(printed)["data"]
    assert found == [1.5, "NaN", "Infinity", "-Infinity"]
    values = np.array([float(each) for each in found], np.float32)
    assert np.array_equal(values, array.ravel(), equal_nan=True)


def test_values_have_the_digits_of_their_precision() -> None:
    [*_, values] = summary("p", np.array([0.1, 1 / 3, 2], np.float32))
    assert values == "0.1, 0.33333334, 2.0"


def test_bytes_that_json_lacks_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        InvalidInput, match=r"b'\\xe9' is not UTF-8.*'synergai submit --output' writes files"
    ):
        tensor_as_json(np.array([b"\xe9"], object))


ENGINE = new_engine("iris", (TensorSpec("x", "FP32", (-1,)),))


def array_file(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"junk", "EOF"),
        (array_file(np.arange(3.0))[:-1], "could only read"),
        (array_file(np.array([{}])), "Object arrays cannot be loaded"),
    ],
)
def test_file_without_arrays_is_refused_with_the_reason(
    content: bytes, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=f"{path} is not a readable .npy file: .*{expected}"):
        parse_inputs([f"@{path}"], ENGINE)


def test_number_that_is_too_large_does_not_become_infinite() -> None:
    with pytest.raises(InvalidInput, match=r"'\[1e400\]' is not valid JSON"):
        parse_inputs(["x=[1e400]"], ENGINE)
