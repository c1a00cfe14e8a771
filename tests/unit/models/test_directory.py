"""Model directories: definitions, faults, links and digests."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.directory import ModelDirectory
from synergai.models.formats import model_files
from synergai.models.formats.model_files import digest

SHA256 = "0" * 64


def put(models: Path, name: str, definition: str = "", file: str = "model.onnx") -> Path:
    folder = models / name
    folder.mkdir()
    (folder / file).write_bytes(b"model")
    if definition:
        (folder / "engine.toml").write_text(definition)
    return folder


def put_saved_model(folder: Path) -> Path:
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "variables" / "variables.index").write_bytes(b"weights")
    return folder


def fault(models: Path, name: str) -> str:
    return ModelDirectory(models).get(name).fault


def test_folder_with_only_a_model_file_is_an_engine(tmp_path: Path) -> None:
    put(tmp_path, "resnet", file="weights.onnx")

    (engine,) = ModelDirectory(tmp_path).engines()

    assert engine.name == "resnet"
    assert engine.version == "1"
    assert engine.backend == "onnxruntime"
    assert engine.file == tmp_path / "resnet" / "weights.onnx"
    assert engine.samples is None
    assert not engine.fault


def test_definition_file_overrides_the_defaults(tmp_path: Path) -> None:
    folder = put(
        tmp_path,
        "resnet",
        'backend = "other"\nfile = "b.bin"\n'
        f'sha256 = "{"A" * 64}"\ntitle = "T"\naccuracy = 1\nsource = "S"\n'
        "max_batch = 8\n",
        file="b.bin",
    )
    (folder / "samples.npz").write_bytes(b"")

    engine = ModelDirectory(tmp_path).get("resnet")

    assert (engine.backend, engine.file.name) == ("other", "b.bin")
    assert (engine.title, engine.accuracy, engine.source) == ("T", 1.0, "S")
    assert engine.sha256 == "a" * 64
    assert engine.max_batch == 8
    assert engine.samples == folder / "samples.npz"
    assert not engine.fault


@pytest.mark.parametrize(
    ("definition", "complaint"),
    [
        ("title = [", "not TOML"),
        ("title = 3", "title must be a string"),
        ('titel = "3"', "there is no setting titel; did you mean title?"),
        ("date = 3", "there is no setting date, but "),
        ('file = "../../other.onnx"', "leads outside"),
        ('file = "/etc/passwd"', "leads outside"),
        ('file = "absent.onnx"', "does not exist"),
        ('sha256 = "12"', "64 hexadecimal digits"),
        ("accuracy = 98.0", "accuracy must be a number of at most 1"),
        ("accuracy = true", "must be a number"),
        ("max_batch = 6", "must be one of 1, 2, 4, 8, 16, 32, 64, 128, 256"),
        ("max_batch = true", "max_batch must be an integer, not true or false"),
        ('preprocess = "vgg"', "preprocess must be one of mobilenet, resnet50, ssd, not 'vgg'"),
        ("postprocess = 1", "postprocess must be a string, not an integer"),
        ('title = ""', "title must not be empty"),
        ('sha256 = ""', "sha256 must be 64 hexadecimal digits"),
        ('[exit]\noutput = ""\nthreshold = 0.9', "exit, output must not be empty"),
        ('backend = "../x"', "not a valid backend name"),
        (r'file = "a\u0000b.onnx"', "control characters"),
        (r'title = "\u001b[31m"', "control characters"),
        ("accuracy = " + "[" * 5000, "nested too deeply"),
        ("a" + ".a" * 64 + " = 1", "nested too deeply"),
        ("[a" + r'. "\"."' * 64 + "]", "nested too deeply"),
        ("accuracy = 0x" + "f" * 6000, "accuracy is too large"),
        (f'accuracy = "{"9" * 6000}"', "accuracy must be a number, not a string"),
        ('inputs = "x:0"', "inputs must be a list, not a string"),
        ("outputs = [1]", "outputs 1 must be a string"),
        ('outputs = ["a", "a"]', "outputs has the name 'a' twice"),
        ('inputs = ["x"]', "for frozen graphs only; model.onnx declares its own"),
        ('file = "."', "is not a SavedModel"),
    ],
)
def test_invalid_definition_is_a_fault_of_its_engine_only(
    tmp_path: Path, definition: str, complaint: str
) -> None:
    put(tmp_path, "bad", definition)
    put(tmp_path, "good")

    assert complaint in fault(tmp_path, "bad")
    assert not fault(tmp_path, "good")


def test_definition_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    folder = put(tmp_path, "good")
    (folder / "engine.toml").write_text("max_batch = 8", "utf-8-sig")
    assert not fault(tmp_path, "good")
    assert ModelDirectory(tmp_path).get("good").max_batch == 8


def test_folder_without_or_with_several_models_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (put(tmp_path, "two") / "second.onnx").write_bytes(b"model")

    assert "no model file" in fault(tmp_path, "none")
    assert "several model files (model.onnx, second.onnx)" in fault(tmp_path, "two")
    for number in range(200):
        (tmp_path / "two" / f"m{number:03}.onnx").write_bytes(b"model")
    assert "files (m000.onnx, m001.onnx, m002.onnx, m003.onnx, m004.onnx, and 197 more);" in fault(
        tmp_path, "two"
    )


def test_links_out_of_the_directory_are_faults(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    put(outside, "engine")
    models = tmp_path / "models"
    models.mkdir()
    (models / "folder").symlink_to(outside / "engine")
    (models / "file").mkdir()
    (models / "file" / "model.onnx").symlink_to(outside / "engine" / "model.onnx")
    (put(models, "samples") / "samples.npz").symlink_to(outside / "engine" / "model.onnx")

    for name in ("folder", "file", "samples"):
        assert "leads outside" in fault(models, name)


def test_links_to_themselves_are_faults(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").symlink_to("model.onnx")
    (put(tmp_path, "definition") / "engine.toml").symlink_to("engine.toml")

    for name in ("model", "definition"):
        assert "is a symbolic link to itself" in fault(tmp_path, name)


def test_definition_that_is_a_pipe_is_a_fault_and_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(put(tmp_path, "piped") / "engine.toml")

    assert fault(tmp_path, "piped") == "engine.toml cannot be read: it is not a regular file"


def test_folder_whose_name_is_not_text_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).mkdir()

    (engine,) = ModelDirectory(tmp_path).engines()

    assert "not a valid engine name" in engine.fault


def test_link_within_the_directory_is_followed(tmp_path: Path) -> None:
    put(tmp_path, "first")
    (tmp_path / "second").symlink_to(tmp_path / "first")

    assert not fault(tmp_path, "second")


def test_empty_or_oversized_model_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (put(tmp_path, "empty") / "model.onnx").write_bytes(b"")
    put(tmp_path, "large")
    monkeypatch.setattr(model_files, "MAX_MODEL_BYTES", 4)

    assert "0 bytes" in fault(tmp_path, "empty")
    assert "5 bytes" in fault(tmp_path, "large")


def test_folder_with_an_invalid_name_is_listed_under_a_valid_one(tmp_path: Path) -> None:
    put(tmp_path, "my_model")
    put(tmp_path, "my  model")

    first, second = ModelDirectory(tmp_path).engines()

    assert first.name != second.name
    assert "'my  model' is not a valid engine name" in first.fault
    assert ModelDirectory(tmp_path).get(second.name) == second


def test_hidden_folders_and_other_files_are_ignored(tmp_path: Path) -> None:
    put(tmp_path, ".building")
    (tmp_path / "README.md").write_text("hello")

    assert ModelDirectory(tmp_path).engines() == []


def test_missing_directory_or_engine_is_not_found(tmp_path: Path) -> None:
    put(tmp_path, "here")

    with pytest.raises(NotFound, match=r"'synergai engines add FILE'.*'synergai engines build'"):
        ModelDirectory(tmp_path / "absent").engines()
    with pytest.raises(NotFound, match="known engines: here"):
        ModelDirectory(tmp_path).get("there")
    with pytest.raises(InvalidInput):
        ModelDirectory(tmp_path).get("../here")


def test_digest_is_checked_against_the_recorded_one(tmp_path: Path) -> None:
    expected = hashlib.sha256(b"model").hexdigest()
    put(tmp_path, "right", f'sha256 = "{expected}"')
    put(tmp_path, "wrong", f'sha256 = "{"0" * 64}"')
    put(tmp_path, "broken", 'file = "absent.onnx"')
    directory = ModelDirectory(tmp_path)

    assert digest(tmp_path / "right" / "model.onnx") == expected
    assert directory.get("right").verified_digest() == expected
    with pytest.raises(EngineUnusable, match="not 0000"):
        directory.get("wrong").verified_digest()
    with pytest.raises(EngineUnusable, match="does not exist"):
        directory.get("broken").verified_digest()


def test_model_deleted_before_verification_is_unusable(tmp_path: Path) -> None:
    folder = put(tmp_path, "gone")
    definition = ModelDirectory(tmp_path).get("gone")
    (folder / "model.onnx").unlink()

    with pytest.raises(EngineUnusable, match="does not exist"):
        definition.verified_digest()


@pytest.mark.parametrize(
    ("file", "backend"),
    [("m.onnx", "onnxruntime"), ("m.tflite", "tflite"), ("m.pb", "tensorflow")],
)
def test_backend_follows_from_the_format(tmp_path: Path, file: str, backend: str) -> None:
    put(tmp_path, "engine", file=file)

    assert ModelDirectory(tmp_path).get("engine").backend == backend


@pytest.mark.parametrize("inside", ["", "1", "saved_model"])
@pytest.mark.parametrize("named", [False, True])
def test_saved_model_is_the_engines_folder_or_inside_it(
    tmp_path: Path, inside: str, named: bool
) -> None:
    model = put_saved_model(tmp_path / "engine" / inside)
    (model / "fingerprint.pb").write_bytes(b"a part of it")
    if named:
        name = f"{inside or '.'}/saved_model.pb"
        (tmp_path / "engine" / "engine.toml").write_text(f'file = "{name}"')

    engine = ModelDirectory(tmp_path).get("engine")

    assert not engine.fault
    assert engine.backend == "tensorflow"
    assert engine.file.samefile(model)


def test_definition_names_tensors_of_a_frozen_graph(tmp_path: Path) -> None:
    put(tmp_path, "ssd", 'inputs = ["image:0"]\noutputs = ["a:0", "b:0"]', file="ssd.pb")

    engine = ModelDirectory(tmp_path).get("ssd")

    assert (engine.inputs, engine.outputs) == (("image:0",), ("a:0", "b:0"))


def test_digest_of_a_folder_covers_paths_and_contents(tmp_path: Path) -> None:
    model = put_saved_model(tmp_path / "m")
    entries = (("saved_model.pb", b"graph"), ("variables/variables.index", b"weights"))
    whole = b"".join(f"{name}\0".encode() + hashlib.sha256(data).digest() for name, data in entries)
    first = digest(model)
    assert first == hashlib.sha256(whole).hexdigest()

    (model / "engine.toml").write_text('title = "no part of the model"')
    (model / "samples.npz").touch()
    assert digest(model) == first

    (model / "variables" / "variables.index").rename(model / "variables" / "other")
    assert digest(model) != first


def test_links_out_of_a_saved_model_are_faults(tmp_path: Path) -> None:
    outside = put_saved_model(tmp_path / "outside")
    models = tmp_path / "models"
    file = put_saved_model(models / "file")
    (file / "variables" / "variables.data").symlink_to(outside / "saved_model.pb")
    folder = put_saved_model(models / "folder")
    (folder / "assets").symlink_to(outside / "variables")

    assert "leads outside" in fault(models, "file")
    assert "is a link to a folder" in fault(models, "folder")


def test_saved_model_with_pipes_or_too_many_files_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(put_saved_model(tmp_path / "piped") / "variables" / "pipe")
    put_saved_model(tmp_path / "large")

    assert "is not a regular file" in fault(tmp_path, "piped")
    with monkeypatch.context() as patched:
        patched.setattr(model_files, "MAX_MODEL_BYTES", 11)
        assert "12 bytes" in fault(tmp_path, "large")
    monkeypatch.setattr(model_files, "MAX_MODEL_FILES", 1)
    assert "more than 1 files" in fault(tmp_path, "large")


def test_loose_file_is_told_how_to_become_an_engine(tmp_path: Path) -> None:
    loose = tmp_path / "my_model.onnx"
    loose.write_bytes(b"model")
    (engine,) = ModelDirectory(tmp_path).engines()
    command = engine.fault.partition("of its own: ")[2]
    subprocess.run(command or "false", shell=True, check=True)
    assert (tmp_path / "my_model" / "my_model.onnx").exists()
    assert not loose.exists()


# --- versions -----------------------------------------------------------------------------------


def put_version(models: Path, name: str, version: str, definition: str = "") -> Path:
    (models / name).mkdir(exist_ok=True)
    return put(models / name, version, definition)


def listed(models: Path) -> dict[str, str]:
    return {
        engine.name: f"{engine.version} {engine.fault}".strip()
        for engine in ModelDirectory(models).engines()
    }


def test_folders_named_by_numbers_are_versions(tmp_path: Path) -> None:
    put(tmp_path, "flat")
    for version in ("10", "2", "1"):
        put_version(tmp_path, "resnet", version)

    engines = ModelDirectory(tmp_path).engines()

    assert [engine.name for engine in engines] == ["flat", "resnet", "resnet/2", "resnet/10"]
    assert [engine.version for engine in engines] == ["1", "1", "2", "10"]
    assert not any(engine.fault for engine in engines)
    second = ModelDirectory(tmp_path).get("resnet/2")
    assert second.file == tmp_path / "resnet" / "2" / "model.onnx"
    assert ModelDirectory(tmp_path).get("resnet/1").name == "resnet"


def test_model_in_the_engines_folder_is_version_1_beside_others(tmp_path: Path) -> None:
    put(tmp_path, "resnet", 'file = "model.onnx"')
    put_version(tmp_path, "resnet", "2")

    assert listed(tmp_path) == {"resnet": "1", "resnet/2": "2"}


def test_saved_model_does_not_contain_the_versions_beside_it(tmp_path: Path) -> None:
    folder = put_saved_model(tmp_path / "classifier")
    alone = digest(folder)
    put_saved_model(folder / "2")

    assert listed(tmp_path) == {"classifier": "1", "classifier/2": "2"}
    assert ModelDirectory(tmp_path).get("classifier").verified_digest() == alone


def test_version_that_is_given_twice_is_a_fault_of_it_alone(tmp_path: Path) -> None:
    put(tmp_path, "resnet")
    put_version(tmp_path, "resnet", "1")
    put_version(tmp_path, "resnet", "2")

    assert listed(tmp_path) == {
        "resnet": "1 version 1 is both in this folder and in its 1/",
        "resnet/2": "2",
    }


@pytest.mark.parametrize("folder", ["0", "01", "00", "1" * 19])
def test_invalid_number_is_a_fault_that_leaves_other_versions_alone(
    tmp_path: Path, folder: str
) -> None:
    put_version(tmp_path, "resnet", folder)
    put_version(tmp_path, "resnet", "2")

    engines = listed(tmp_path)

    assert engines.pop("resnet/2") == "2"
    [(name, text)] = engines.items()
    assert name.startswith("invalid-version-")
    assert f"the folder resnet/{folder}: '{folder}' is not a version" in text


def test_folder_with_a_model_that_is_not_named_like_a_version_is_a_fault(tmp_path: Path) -> None:
    put_version(tmp_path, "resnet", "1")
    put_version(tmp_path, "resnet", "two")
    (tmp_path / "resnet" / "notes").mkdir()

    engines = listed(tmp_path)

    assert engines.pop("resnet") == "1"
    [text] = engines.values()
    assert text == "1 the folder resnet/two is not a version: name it by a number from 1"


def test_empty_version_folder_is_a_fault_of_it_alone(tmp_path: Path) -> None:
    put_version(tmp_path, "resnet", "1")
    (tmp_path / "resnet" / "2").mkdir()

    engines = listed(tmp_path)

    assert engines["resnet"] == "1"
    assert "no model file" in engines["resnet/2"]


def test_version_uses_the_definition_and_samples_of_its_engine_unless_it_has_its_own(
    tmp_path: Path,
) -> None:
    put_version(tmp_path, "resnet", "1")
    put_version(tmp_path, "resnet", "2", 'title = "second"')
    (tmp_path / "resnet" / "engine.toml").write_text('title = "shared"')
    (tmp_path / "resnet" / "samples.npz").write_bytes(b"")
    (tmp_path / "resnet" / "2" / "samples.npz").write_bytes(b"")

    first, second = ModelDirectory(tmp_path).engines()

    assert (first.title, second.title) == ("shared", "second")
    assert first.samples == tmp_path / "resnet" / "samples.npz"
    assert second.samples == tmp_path / "resnet" / "2" / "samples.npz"


def test_version_beside_an_added_model_shares_all_but_its_file_and_digest(tmp_path: Path) -> None:
    put(
        tmp_path,
        "resnet",
        f'file = "model.onnx"\nsha256 = "{SHA256}"\ntitle = "shared"\naccuracy = 0.9',
    )
    put_version(tmp_path, "resnet", "2")
    (tmp_path / "resnet" / "2" / "model.onnx").rename(tmp_path / "resnet" / "2" / "second.onnx")

    first, second = ModelDirectory(tmp_path).engines()

    assert (first.sha256, second.sha256) == (SHA256, "")
    assert second.file == tmp_path / "resnet" / "2" / "second.onnx"
    assert (second.fault, second.title) == ("", "shared")
    assert (first.accuracy, second.accuracy) == (0.9, None)


def test_file_and_digest_of_an_engine_without_a_model_of_its_own_hold_for_its_versions(
    tmp_path: Path,
) -> None:
    put_version(tmp_path, "resnet", "1")
    (tmp_path / "resnet" / "engine.toml").write_text(f'file = "model.onnx"\nsha256 = "{SHA256}"')

    [engine] = ModelDirectory(tmp_path).engines()

    assert (engine.fault, engine.sha256) == ("", SHA256)


def test_version_outside_the_model_directory_is_a_fault(tmp_path: Path) -> None:
    models, outside = tmp_path / "models", tmp_path / "outside"
    models.mkdir()
    outside.mkdir()
    put_version(models, "resnet", "1")
    (outside / "model.onnx").write_bytes(b"model")
    (models / "resnet" / "2").symlink_to(outside)

    assert not fault(models, "resnet")
    assert "leads outside the model directory" in fault(models, "resnet/2")


# --- directories of earlier releases ------------------------------------------------------------


def test_saved_model_that_is_called_like_a_version_stays_the_only_model(tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    put_saved_model(folder / "1556128768")
    (folder / "engine.toml").write_text('file = "1556128768"')  # by ``synergai engines add``

    assert listed(tmp_path) == {"classifier": "1"}
    assert ModelDirectory(tmp_path).get("classifier").file == folder / "1556128768"
