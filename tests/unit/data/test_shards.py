"""Shards of results, and the directories that they are in."""

import errno
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import synergai
from synergai.data import result_directory as shard_files
from synergai.data.items import JobResult
from synergai.data.result_directory import MARKER, DirectoryMarker, ResultDirectory, read_marker
from synergai.errors import Conflict, InvalidInput, NotSupported
from synergai.runtime.files import write_atomic
from synergai.wire.arrays import BFLOAT16_BITS

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def texts(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    return arrays.arrays(np.object_, shape, elements=st.binary(max_size=5), fill=st.nothing())


@st.composite
def results(draw: st.DrawFn) -> list[JobResult]:
    """Results with outputs of any dtype, some of them of one shape."""
    names = draw(
        st.lists(st.sampled_from(["p", "index", "index_", "error", "p.shape"]), unique=True)
    )
    dtypes = {
        name: draw(st.sampled_from(["<f4", "<f2", "|i1", "<u8", "|b1", "BF16", "BYTES"]))
        for name in names
    }
    fixed = {name: draw(SHAPES) if draw(st.booleans()) else None for name in names}
    found = []
    for index in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 3)) == 0:
            found.append(JobResult(index, draw(TEXTS), {}, "no " + draw(TEXTS)))
            continue
        outputs = {}
        for name, dtype in dtypes.items():
            shape = fixed[name]
            shape = draw(SHAPES) if shape is None else shape
            if dtype == "BYTES":
                outputs[name] = draw(texts(shape))
            elif dtype == "BF16":
                outputs[name] = draw(arrays.arrays("<u2", shape)).view(BFLOAT16_BITS)
            else:
                outputs[name] = draw(arrays.arrays(dtype, shape))
        found.append(JobResult(index, draw(TEXTS), outputs))
    return found


def assert_same(found: JobResult, expected: JobResult) -> None:
    assert (found.index, found.name, found.error) == (
        expected.index,
        expected.name,
        expected.error,
    )
    assert found.outputs.keys() == expected.outputs.keys()
    for name, array in expected.outputs.items():
        assert found.outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(found.outputs[name], array)


def a_result(index: int, **outputs: object) -> JobResult:
    found = {name: np.asarray(value) for name, value in (outputs or {"p": [index]}).items()}
    return JobResult(index, f"{index}.jpg", found)


def read(path: Path) -> list[JobResult]:
    return [result for _, result in synergai.read_results(path)]


@given(expected=results())
@settings(deadline=None, max_examples=60)
def test_results_read_back_as_they_were_written(
    expected: list[JobResult],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results-000001.parquet")
        shard_files.write_shard(path, expected, job_id="job", cursor=7, total=9)
        description = shard_files.describe_shard(path)
        assert (description.job_id, description.cursor, description.total) == ("job", 7, 9)
        found = read(path)
    assert len(found) == len(expected)
    for each, original in zip(found, expected, strict=True):
        assert_same(each, original)


def write_one(path: Path) -> None:
    shard_files.write_shard(path, [a_result(0)], job_id="job", cursor=1, total=1)


@pytest.mark.parametrize("write", [write_one, partial(write_atomic, text="")])
def test_file_that_finds_no_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "results-000001.parquet"
    with pytest.raises(OSError, match="No space left") as error:
        write(path)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())


@given(
    counts=st.lists(st.integers(1, 5), max_size=6),
    failures=st.sets(st.integers(0, 12), max_size=4),
)
@settings(deadline=None, max_examples=25)
def test_interrupted_writing_continues_without_gap_or_repetition(
    counts: list[int], failures: set[int]
) -> None:
    """Every write may fail half-way; the directory is then opened again, as by a new process."""
    expected = [a_result(index) for index in range(sum(counts))]
    attempts = 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        write = shard_files._write

        def fail_sometimes(file: Any, *arguments: Any) -> None:
            nonlocal attempts
            attempts += 1
            if attempts in failures:
                file.write(b"half a shard")
                raise OSError("the disk is full")
            write(file, *arguments)

        patch.setattr(shard_files, "_write", fail_sometimes)
        path = Path(folder)
        done = 0
        while done < len(counts):
            with ResultDirectory(path) as directory:
                directory.claim(DirectoryMarker("job", "engine"))
                done = _shards_up_to(counts, directory.cursor)
                for count in counts[done:]:
                    first = directory.cursor
                    batch = expected[first : first + count]
                    try:
                        directory.write(batch, first + count)
                    except OSError:
                        break
                    done += 1
                assert {each.index for each in read(path)} == set(range(directory.cursor))
        assert [each.index for each in read(path)] == list(range(len(expected)))
        allowed = {MARKER, *(f"results-{n:06}.parquet" for n in range(1, len(counts) + 1))}
        assert {each.name for each in path.iterdir()} <= allowed


def _shards_up_to(counts: list[int], cursor: int) -> int:
    done = 0
    while cursor > 0:
        cursor -= counts[done]
        done += 1
    return done


def test_shard_has_a_row_for_each_result_for_other_libraries(tmp_path: Path) -> None:
    found = [
        a_result(0, p=np.array([[0.5, 0.25]], np.float32), label=np.asarray([b"cat"], object)),
        JobResult(1, "b.jpg", {}, "not an image"),
    ]
    with ResultDirectory(tmp_path) as directory:
        directory.claim(DirectoryMarker("job", "engine"))
        path = directory.write(found, 2)
    assert pq.ParquetFile(path).read().to_pylist() == [
        {"index": 0, "name": "0.jpg", "error": None, "p": [0.5, 0.25], "label": b"cat"},
        {"index": 1, "name": "b.jpg", "error": "not an image", "p": None, "label": None},
    ]


def test_directory_takes_the_results_of_one_job(tmp_path: Path) -> None:
    with ResultDirectory(tmp_path / "new" / "folder") as directory:
        directory.check(DirectoryMarker("", "digits", "command"))
        assert list(directory.path.iterdir()) == []
        directory.claim(DirectoryMarker("first", "digits", "command"))
        directory.write([a_result(0)], 1)
        with pytest.raises(Conflict, match="another process writes results to"):
            ResultDirectory(directory.path)
    with ResultDirectory(directory.path) as again:
        assert (again.cursor, again.total) == (1, 1)
        again.claim(DirectoryMarker("first"))
        again.check(DirectoryMarker("", "digits", "command"))
        with pytest.raises(Conflict, match=r"has the results of job first \(digits\); choose"):
            again.claim(DirectoryMarker("second", "digits", "another command"))


def test_submission_that_was_not_accepted_does_not_bind_the_directory(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"engine": "digits", "submission": "x"}')
    with ResultDirectory(tmp_path) as directory:
        directory.claim(DirectoryMarker("first", "digits", "y"))
    assert read_marker(tmp_path) == DirectoryMarker("first", "digits", "y")


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.parquet").write_text("mine")
    (tmp_path / ".results-000001.parquet-abc").write_text("of a killed process")
    with ResultDirectory(tmp_path) as directory:
        directory.claim(DirectoryMarker("job"))
        directory.write([a_result(0)], 1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.parquet",
        "results-000001.parquet",
        MARKER,
    }
    assert (tmp_path / "results.parquet").read_text() == "mine"


def test_shards_without_a_marker_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results-000001.parquet").write_text("whose?")
    with pytest.raises(Conflict, match=r"no synergai-job\.json that says which"):
        ResultDirectory(tmp_path)


def test_shard_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results-000001.parquet"
    path.write_text("there first")
    with pytest.raises(FileExistsError):
        shard_files.write_shard(path, [a_result(0)], job_id="job", cursor=1, total=1)
    assert path.read_text() == "there first"


@pytest.mark.parametrize("content", [b"", b"no shard"])
def test_damaged_shard_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results-000001.parquet"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="is not a shard of results"):
        read(path)


def test_table_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"index": [0]}), tmp_path / "results-000001.parquet")
    with pytest.raises(InvalidInput, match="is not a shard of results"):
        read(tmp_path)
    with pytest.raises(InvalidInput, match="no such directory"):
        read(tmp_path / "absent")


def test_results_without_pyarrow_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("synergai.data.parquet.import_module", refuse)
    with pytest.raises(NotSupported, match=r"pip install 'WHEEL\[data\]'"):
        ResultDirectory(tmp_path / "new")
    assert not list(tmp_path.iterdir())
