"""``synergai infer``."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.integration.client.conftest import RunCommand


async def test_only_input_needs_no_name(ask: RunCommand) -> None:
    ran = await ask("infer", "identity", "--input", "[1, 2.5]")
    assert (ran.code, ran.err) == (0, "")
    assert "FP32" in ran.out
    assert "1.0, 2.5" in ran.out


async def test_long_output_is_previewed(ask: RunCommand) -> None:
    ran = await ask("infer", "wide", "--input", "x=7")
    assert ran.code == 0
    assert "[1000]" in ran.out
    assert ran.out.rstrip().endswith("…")


async def test_json_has_every_element(ask: RunCommand) -> None:
    ran = await ask("infer", "wide", "-i", "[7]", "--json")
    answer = json.loads(ran.out)
    assert answer["outputs"]["y"] == {"datatype": "FP32", "shape": [1000], "data": [7.0] * 1000}


async def test_values_come_from_files(ask: RunCommand, tmp_path: Path) -> None:
    numbers = np.array([3, 4], np.float32)
    np.save(tmp_path / "x.npy", numbers)
    np.save(tmp_path / "doubles.npy", np.array([3.0, 4.0]))
    for value in ("x=@x.npy", "@doubles.npy"):
        text = value.replace("@", f"@{tmp_path}/")
        ran = await ask("infer", "identity", "--input", text)
        assert (ran.code, ran.err) == (0, "")
        assert "3.0, 4.0" in ran.out


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("z=[1]", "has no input 'z': it takes --input x=<FP32 [-1]>"),
        ("[1, [2]]", "input 'x': its rows have different lengths"),
        ("[1e300]", "input 'x': 1e+300 cannot be represented as FP32"),
        ("@absent.npy", "absent.npy: no such file"),
        ("@broken.npy", "broken.npy is not a readable .npy file"),
        ("@photo.jpg", "takes tensors only"),
    ],
)
async def test_bad_input_is_one_line_that_names_it(
    ask: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    ran = await ask("infer", "identity", "--input", value)
    assert ran.code == 1
    assert message in ran.err
    assert ran.err.count("\n") == 1


async def test_missing_input_shows_what_the_engine_takes(ask: RunCommand) -> None:
    ran = await ask("infer", "identity")
    assert ran.code == 1
    assert "no value for input 'x': it takes --input x=<FP32 [-1]>" in ran.err
