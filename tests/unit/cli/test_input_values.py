"""Rules for input values that ``synergai infer`` reads from files."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from synergai.cli.infer import parse_inputs
from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from tests.engines import new_engine

ENGINE = new_engine("iris", (TensorSpec("x", "FP32", (-1,)),))


def array_file(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


OBJECTS = array_file(np.array([{}]))
NUMBERS = array_file(np.arange(3.0))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.npy", b"junk", "it is not an array in NumPy's format"),
        ("x.npy", b"", "it is not an array in NumPy's format"),
        ("x.npy", archive(x=NUMBERS), "it is not an array in NumPy's format"),
        ("x.npy", NUMBERS[:-1], "it ends before its array does, or is damaged"),
        ("x.npy", OBJECTS, "it has Python objects, which are not read; save numbers or texts"),
        ("x.npz", b"junk", "File is not a zip file"),
        ("x.npz", NUMBERS, "File is not a zip file"),
        ("x.npz", archive(x=b"junk"), "its 'x' is not an array in NumPy's format"),
        ("x.npz", archive(x=OBJECTS), "its 'x' has Python objects, which are not read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_file_without_arrays_is_refused_with_the_reason(
    name: str, content: bytes, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as raised:
        parse_inputs([f"@{path}"], ENGINE)
    prefix = f"{path} is not a readable {path.suffix} file: "
    assert str(raised.value).startswith(prefix + expected)


def test_arrays_are_read_from_files_in_any_order(tmp_path: Path) -> None:
    matrix = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "x.npy", matrix)
    np.savez_compressed(tmp_path / "x.npz", x=matrix)
    for name in ("x.npy", "x.npz"):
        [value] = parse_inputs([f"@{tmp_path / name}"], ENGINE).values()
        np.testing.assert_array_equal(value, matrix)


@pytest.mark.parametrize("option", ["@{path}", "x=@{path}"])
def test_text_file_is_the_value_of_an_input_of_texts_only(tmp_path: Path, option: str) -> None:
    texts = replace(ENGINE, inputs=(TensorSpec("x", "BYTES", (1,)),))
    path = tmp_path / "notes.txt"
    path.write_bytes("dög\n".encode())
    text = option.format(path=path)
    assert parse_inputs([text], texts) == {"x": "dög\n".encode()}
    with pytest.raises(InvalidInput, match=r"txt: not a \.npy"):
        parse_inputs([text], ENGINE)


def test_number_that_is_too_large_does_not_become_infinite(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1e400]")
    with pytest.raises(InvalidInput, match="1e400 is not a floating-point number"):
        parse_inputs([f"x=@{tmp_path / 'x.json'}"], ENGINE)
    with pytest.raises(InvalidInput, match=r"'\[1e400\]' is not valid JSON"):
        parse_inputs(["x=[1e400]"], ENGINE)
