"""Inputs by URL: only from below the allowed roots."""

import os
from pathlib import Path

import pytest

from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from tests.engines import new_engine
from worker_agent.hub_client.input_reader import InputReader

IMAGES = new_engine(
    "images",
    (TensorSpec("image", "FP32", (-1, 3, 8, 8)),),
    (TensorSpec("y", "FP32", (-1,)),),
    preprocess="mobilenet",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a b.jpg").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "x").write_bytes(b"beside")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to(root / "a b.jpg")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize("name", ["a%20b.jpg", "in", "../root/a%20b.jpg"])
def test_file_below_a_root_becomes_the_one_value_of_the_input(root: Path, name: str) -> None:
    for allowed in (str(root), root.as_uri()):
        data = InputReader([allowed], 100).read(f"file://{root}/{name}", IMAGES)
        request = ModelInferRequest.FromString(data)
        [tensor] = request.inputs
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("image", "BYTES", [1])
        assert list(request.raw_input_contents) == [b"\x07\0\0\0picture"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file://{root}/out", "not below"),
        ("file://{root}/../secret", "not below"),
        ("file://{root}/%2e%2e/secret", "not below"),
        ("file://{root}-2/x", "not below"),
        ("file://{root}/missing", "No such file"),
        ("file://{root}/pipe", "not a file"),
        ("file://{root}", "not a file|Is a directory"),
        ("file://elsewhere{root}/in", "another machine"),
        ("file://{root}/a%00b", "cannot be read"),
        ("{root}/in", "not below"),
        ("s3://bucket/key", "not below"),
    ],
)
def test_anything_else_is_refused_with_the_reason(root: Path, url: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        InputReader([str(root)], 100).read(url.format(root=root), IMAGES)


def test_nothing_is_allowed_without_a_root(root: Path) -> None:
    with pytest.raises(InvalidInput, match="--input-roots"):
        InputReader([], 100).read(f"file://{root}/in", IMAGES)


def test_file_beyond_the_limit_is_refused(root: Path) -> None:
    with pytest.raises(InvalidInput, match="more than 6 bytes"):
        InputReader([str(root)], 6).read(f"file://{root}/in", IMAGES)


@pytest.mark.parametrize("url", ["s3://bucket/other/key", "s3://bucket/allowed/%2e%2e/key"])
def test_other_schemes_stay_below_their_prefix(url: str) -> None:
    with pytest.raises(InvalidInput, match="not below"):
        InputReader(["s3://bucket/allowed"], 100).read(url, IMAGES)


def test_url_that_is_chained_with_another_one_is_refused() -> None:
    reader = InputReader(["memory://allowed"], 100)
    with pytest.raises(InvalidInput, match="--input-roots"):
        reader.read("memory://allowed/x::file:///etc/hostname", IMAGES)
