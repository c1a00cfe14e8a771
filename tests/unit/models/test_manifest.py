"""Manifests and packages of engines."""

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import digest
from synergai.models.manifest import (
    MAX_ENGINE_BYTES,
    Manifest,
    ManifestFile,
    pack,
    packed_name,
    read_manifest,
)

A = "a" * 64


def manifest(*paths: str, model: str = "model.onnx", size: int = 1) -> bytes:
    files = tuple(ManifestFile(path, A, size) for path in paths)
    return Manifest(backend="onnxruntime", model=model, files=files).encode()


def test_folder_becomes_the_manifest_of_all_its_visible_files(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "labels").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "engine.toml").write_text('title = "Mine"\n')
    (folder / "labels" / "en.txt").write_text("cat\n")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("x")
    package = pack(folder, "mine", 2)
    paths = [file.path for file in package.manifest.files]
    assert paths == ["engine.toml", "labels/en.txt", "model.onnx"]
    assert (package.manifest.model, package.manifest.backend) == ("model.onnx", "onnxruntime")
    assert package.manifest.model_sha256 == digest(folder / "model.onnx")
    assert read_manifest(package.manifest.encode()) == package.manifest
    assert {package.paths[file.sha256].read_bytes() for file in package.manifest.files} == {
        b"model",
        b'title = "Mine"\n',
        b"cat\n",
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("resnet50.onnx", "resnet50"),
        ("resnet50/model.onnx", "resnet50"),
        ("resnet50", "resnet50"),
        ("resnet50/2", "resnet50"),
    ],
)
def test_a_package_is_named_as_engines_add_would_name_it(
    tmp_path: Path, path: str, name: str
) -> None:
    source = tmp_path / path
    (source.parent if source.suffix else source).mkdir(parents=True, exist_ok=True)
    assert packed_name(source) == name


def test_file_becomes_a_manifest_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("x")
    (tmp_path / "m.tflite").write_bytes(b"m")
    package = pack(tmp_path / "m.tflite", "any", 2)
    assert [file.path for file in package.manifest.files] == ["m.tflite"]
    assert package.manifest.backend == "tflite"


def test_version_is_packed_with_what_it_shares_and_without_other_versions(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"1")
    (tmp_path / "2" / "model.onnx").write_bytes(b"2")
    (tmp_path / "2" / "samples.npz").write_bytes(b"own")
    (tmp_path / "samples.npz").write_bytes(b"shared")
    (tmp_path / "engine.toml").write_text('title = "Shared"')
    second, first = pack(tmp_path / "2", "mine", 2), pack(tmp_path, "mine", 1)
    for package, model, samples in ((second, b"2", b"own"), (first, b"1", b"shared")):
        contents = [package.paths[file.sha256].read_bytes() for file in package.manifest.files]
        assert contents == [b'title = "Shared"', model, samples]


def test_version_that_would_get_the_digest_of_version_1_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"1")
    (tmp_path / "2" / "model.onnx").write_bytes(b"2")
    (tmp_path / "engine.toml").write_text(f'sha256 = "{"0" * 64}"')
    with pytest.raises(InvalidInput, match="has the file or sha256 of version 1: push the model"):
        pack(tmp_path / "2", "mine", 2)


@pytest.mark.parametrize("nested", [True, False])
def test_saved_model_has_the_digest_that_agents_compute(tmp_path: Path, *, nested: bool) -> None:
    folder = tmp_path / "engine"
    model = folder / "saved_model" if nested else folder
    (model / "variables").mkdir(parents=True)
    (model / "saved_model.pb").write_bytes(b"graph")
    (model / "variables" / "v.index").write_bytes(b"i")
    (model / "variables.txt").write_bytes(b"sorts between")
    (folder / "engine.toml").write_text('title = "two"\n')
    (folder / "samples.npz").write_bytes(b"s")
    package = pack(folder, "engine", 2)
    assert package.manifest.model == ("saved_model" if nested else ".")
    assert package.manifest.model_sha256 == digest(model)
    assert len(package.manifest.files) == 5


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no model"),
        ({"a.onnx": "", "b.onnx": ""}, "several models"),
        ({"a.onnx": ""}, "1 to"),
    ],
)
def test_folder_that_is_no_engine_is_refused_with_what_to_do(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=message):
        pack(tmp_path, "mine", 2)


def test_links_are_not_followed_when_packing(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("x")
    (tmp_path / "secret").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput, match="is a link"):
        pack(tmp_path, "mine", 2)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/etc/passwd", "../x", "a/../x", "a//b", "./a", "a\\b", "a\nb", ".hidden"),
        *("a/" * 16 + "b", "x" * 256, "é" * 200),
    ],
)
def test_manifest_with_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    data = manifest("model.onnx", path)
    with pytest.raises(InvalidInput, match="is not a path"):
        read_manifest(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        manifest("other.onnx"),
        manifest("model.onnx", "model.onnx"),
        manifest("model.onnx", "model.onnx/a"),
        manifest("model.onnx", size=0),
        manifest("model.onnx", size=-1),
        manifest("model.onnx", size=MAX_ENGINE_BYTES + 1),
        manifest("model.onnx").replace(A.encode(), b"../" * 21 + b"x"),
        manifest("model.onnx").replace(b"onnxruntime", b"../x"),
        manifest("model.onnx").replace(b'"format":1', b'"format":2'),
        manifest("model.onnx").replace(b'"format"', b'"unknown"'),
    ],
)
def test_damaged_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_manifest(data)


@pytest.mark.parametrize(
    ("name", "version"), [("a b", 1), ("echo", 0), ("echo", -1), ("echo", 1 << 31)]
)
def test_files_are_not_read_for_a_name_or_version_that_is_not_valid(
    tmp_path: Path, name: str, version: int
) -> None:
    with pytest.raises(InvalidInput, match=r"not a valid engine name|a version must be"):
        pack(tmp_path / "missing.onnx", name, version)
