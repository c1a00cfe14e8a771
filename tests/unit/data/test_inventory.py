"""Readers of inputs in files."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synergai.data.inventory import InputInventory
from synergai.data.items import NamedInput, Unusable
from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput, NotSupported
from tests.engines import new_engine

LIMIT = 1 << 20


def an_engine(*inputs: TensorSpec, preprocess: str = "") -> Engine:
    return new_engine("engine", inputs, preprocess=preprocess)


IMAGES = an_engine(TensorSpec("image", "FP32", (1, 8, 8, 3)), preprocess="mobilenet")
ROWS = an_engine(TensorSpec("x", "FP32", (-1, 2)))
PAIRS = an_engine(TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1, 1)))


def read(
    *patterns: Path | str, engine: Engine = ROWS, start: int = 0, **options: Any
) -> list[NamedInput]:
    with scanned(*patterns, engine=engine, **options) as inventory:
        items = list(inventory.read(start))
        assert len(items) == inventory.inputs - start
        return items


def scanned(*patterns: Path | str, engine: Engine = ROWS, limit: int = LIMIT) -> InputInventory:
    inventory = InputInventory([str(each) for each in patterns], engine, limit=limit)
    try:
        for _ in inventory.scan():
            pass
    except BaseException:
        inventory.close()
        raise
    return inventory


def names(items: Sequence[NamedInput], root: Path) -> list[str]:
    return [item.name.removeprefix(f"{root}/") for item in items]


def reason(item: NamedInput) -> str:
    assert isinstance(item.value, Unusable), item
    return item.value.reason


def photo(path: Path, content: bytes = b"jpeg") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- files ------------------------------------------------------------------------------


def test_pattern_gives_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.jpg", "ä.jpg", ".hidden.jpg", "notes.txt"):
        photo(tmp_path / name, name.encode())
    found = read(tmp_path / "*.jpg", engine=IMAGES)
    assert names(found, tmp_path) == ["a.jpg", "b.jpg", "ä.jpg"]
    assert [item.value for item in found] == [b"a.jpg", b"b.jpg", "ä.jpg".encode()]


def test_directory_is_searched_for_files_that_the_engine_takes(tmp_path: Path) -> None:
    for name in ("cats/1.jpg", "cats/2.PNG", "dogs/1.jpeg", "dogs/Thumbs.db", ".git/x.jpg"):
        photo(tmp_path / name)
    with scanned(tmp_path, engine=IMAGES) as inventory:
        found = names(list(inventory.read()), tmp_path)
        assert found == ["cats/1.jpg", "cats/2.PNG", "dogs/1.jpeg"]
        assert (inventory.files, inventory.skipped, inventory.size) == (3, 1, 12)


def test_file_with_the_characters_of_a_pattern_is_found(tmp_path: Path) -> None:
    assert names(read(photo(tmp_path / "a[1].jpg"), engine=IMAGES), tmp_path) == ["a[1].jpg"]


def test_name_that_is_not_text_is_escaped(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.jpg"
    photo(tmp_path / os.fsdecode(b"\xff.jpg"), b"content")
    assert os.path.exists(path)  # noqa: PTH110 - a path of bytes
    [item] = read(tmp_path / "*.jpg", engine=IMAGES)
    assert (item.name, item.value) == (f"{tmp_path}/\\udcff.jpg", b"content")


def test_unreadable_files_fail_alone(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    photo(tmp_path / "b.jpg", b"")
    photo(tmp_path / "c.jpg", bytes(LIMIT + 1))
    gone = photo(tmp_path / "d.jpg")
    with scanned(tmp_path, engine=IMAGES) as inventory:
        gone.unlink()
        found = list(inventory.read())
    assert found[0].value == b"jpeg"
    assert [reason(item) for item in found[1:]] == [
        "the file is empty",
        "the file is larger than 1,048,576 bytes, the limit of a message",
        "there is no such file",
    ]


@pytest.mark.parametrize("pattern", ["absent", "absent/*.jpg", "a.jpg/*"])
def test_pattern_without_files_is_refused(pattern: str, tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    with pytest.raises(InvalidInput, match=r"no such file|no file matches"):
        read(tmp_path / pattern, engine=IMAGES)


def test_empty_folder_is_refused_with_what_was_skipped(tmp_path: Path) -> None:
    photo(tmp_path / "notes.md")
    with pytest.raises(InvalidInput, match=r"no inputs for engine 'engine'; .* suffix: 1$"):
        read(tmp_path, engine=IMAGES)


def test_folder_of_images_for_an_engine_of_tensors_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    photo(tmp_path / "a.jpg")
    with pytest.raises(InvalidInput, match=r"suffix: 1; .* tensors only, .* set preprocess"):
        read(tmp_path)


def test_engine_without_preprocessing_takes_no_images(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    np.save(tmp_path / "b.npy", np.zeros((1, 2)))
    bad, _ = read(tmp_path / "*")
    assert "tensors only" in reason(bad)
    with pytest.raises(InvalidInput, match=r"^[^:]*a.jpg: the engine"):
        read(tmp_path / "*.jpg")
    photo(tmp_path / "b.jpg")
    with pytest.raises(InvalidInput, match=r": no file can be used, such as .*a.jpg: the engine"):
        read(tmp_path / "*.jpg")


def test_digest_changes_with_names_and_contents(tmp_path: Path) -> None:
    def digest() -> str:
        with scanned(tmp_path, engine=IMAGES) as inventory:
            return inventory.digest

    photo(tmp_path / "a.jpg")
    first = digest()
    assert digest() == first
    photo(tmp_path / "a.jpg", b"another")
    second = digest()
    photo(tmp_path / "b.jpg")
    assert len({first, second, digest()}) == 3


# --- rows -------------------------------------------------------------------------------


def test_rows_of_an_array_are_inputs_from_any_position(tmp_path: Path) -> None:
    rows = np.arange(400_000.0).reshape(-1, 2)  # several chunks
    np.save(tmp_path / "x.npy", rows)
    found = read(tmp_path / "x.npy", start=150_001)
    assert found[0].name == f"{tmp_path}/x.npy#150001"
    np.testing.assert_array_equal([item.value["x"] for item in found], rows[150_001:])


def test_array_of_the_inputs_shape_is_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0]))
    [item] = read(tmp_path / "x.npy")
    assert item.name == f"{tmp_path}/x.npy"
    assert item.value["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("flat", [False, True])
def test_rows_of_a_parquet_file_are_read_by_row_group(flat: bool, tmp_path: Path) -> None:
    rows = np.arange(24.0).reshape(6, 2, 2)
    column = pa.array([row.ravel().tolist() if flat else row.tolist() for row in rows])
    table = pa.table({"x": column, "label": pa.array(range(6))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    engine = an_engine(TensorSpec("x", "FP32", (-1, 2, 2)))
    found = read(tmp_path / "x.parquet", engine=engine, start=3)
    assert [item.name.rpartition("#")[2] for item in found] == ["3", "4", "5"]
    np.testing.assert_array_equal([item.value["x"] for item in found], rows[3:])


def test_parquet_file_of_images_and_missing_values(tmp_path: Path) -> None:
    table = pa.table({"label": [1, 2, 3], "image": [b"one", None, b"three"]})
    pq.write_table(table, tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet", engine=IMAGES)
    assert [item.value["image"] for item in found] == [b"one", None, b"three"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.npy", b"no array", "not an array in NumPy's format"),
        ("x.npy", b"", "not an array in NumPy's format"),
        ("x.parquet", b"no table", "not a Parquet file"),
    ],
)
def test_damaged_file_fails_alone(name: str, content: bytes, expected: str, tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.zeros((1, 2)))
    (tmp_path / name).write_bytes(content)
    good, bad = read(tmp_path / "good.npy", tmp_path / name)
    assert good.value["x"].tolist() == [0.0, 0.0]
    assert expected in reason(bad)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        *((np.zeros(shape), "does not suit input 'x'") for shape in ((), 5, (3, 5), (3, 1, 5))),
        (np.asfortranarray(np.zeros((3, 2))), "Fortran order"),
        (np.array([{}]), "Python objects"),
        (np.zeros(3, [(f"column {n}", "f4") for n in range(900)]), "structured .* columns as one"),
        (np.zeros(3, [("a", "f4"), ("b", "f4")]), "structured .* columns as one"),
    ],
)
def test_array_that_does_not_suit_is_refused(
    array: np.ndarray[Any, Any], expected: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InvalidInput, match=expected):
        read(tmp_path / "x.npy")


def test_columns_of_other_names_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[0.0, 0.0]], "c": [[0]]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidInput, match=r"the columns a, c; engine 'engine' needs a, b"):
        read(tmp_path / "x.parquet", engine=PAIRS)
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(InvalidInput, match=r"several inputs: put them into the columns a, b of a"):
        read(tmp_path / "x.npy", engine=PAIRS)


def test_rows_of_a_file_that_is_cut_meanwhile_fail(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((300_000, 2)))  # 4.8 MB, in chunks of 1 MiB
    with scanned(path) as inventory:
        os.truncate(path, 2_000_000)
        found = list(inventory.read())
    assert len(found) == 300_000
    assert found[0].value["x"].tolist() == [0.0, 0.0]
    assert reason(found[-1]) == "the file ends before its array does"


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(name=name.partition(".")[0])

    monkeypatch.setattr("synergai.data.parquet.import_module", refuse)
    (tmp_path / "x.parquet").touch()
    with pytest.raises(NotSupported, match=r"Parquet files need pyarrow.*'WHEEL\[data\]'"):
        read(tmp_path / "x.parquet")


# --- size -------------------------------------------------------------------------------


def peak_bytes(folder: Path) -> int:
    """Return the most memory that is allocated while the files of a folder are listed and read."""
    tracemalloc.start()
    with scanned(folder, engine=IMAGES) as inventory:
        assert inventory.inputs == 10_000
        last = None
        for item in inventory.read():
            last = item
        assert last is not None
        assert last.name == str(folder / "0009999.jpg")
    return tracemalloc.get_traced_memory()[1]


def test_many_names_take_little_memory(tmp_path: Path) -> None:
    first = photo(tmp_path / "photos" / "0000000.jpg")
    for number in range(1, 10_000):
        os.link(first, tmp_path / f"photos/{number:07}.jpg")
    # In a process of its own: what other tests have left in this one counts as well.
    code = "from tests.unit.data.test_inventory import peak_bytes; "
    code += f"print(peak_bytes(Path({str(first.parent)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", "from pathlib import Path; " + code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert int(done.stdout) < 2_700_000, "the names of one directory are kept, and nothing else"


def test_large_array_is_read_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (50_000_000, 2)}
        np.lib.format.write_array_header_2_0(file, header)  # type: ignore[no-untyped-call, unused-ignore]
        file.truncate(file.tell() + 800_000_000)  # sparse
    tracemalloc.start()
    try:
        with scanned(path) as inventory:
            assert inventory.inputs == 50_000_000
            reader = inventory.read(25_000_000)
            for _ in range(20_000):
                assert next(reader).value["x"].shape == (2,)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
