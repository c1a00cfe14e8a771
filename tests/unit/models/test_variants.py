"""Variants in an engine.toml: reading, faults, packing and writing."""

import hashlib
from pathlib import Path

import pytest

from profiler.installation import write_definition
from synergai.domain import Exit, Origin
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.definition import VariantKeys, read_definition
from synergai.models.directory import ModelDirectory
from synergai.models.manifest import pack

FAMILY = """
title = "a family"

[[variants]]
name = "full"
file = "full.onnx"
accuracy = 0.884
origin = "measured"

[[variants]]
name = "int8"
file = "small/int8.onnx"
"""


def put_family(models: Path, definition: str = FAMILY, engine: str = "net") -> Path:
    folder = models / engine
    (folder / "small").mkdir(parents=True)
    for file in ("full.onnx", "small/int8.onnx"):
        (folder / file).write_bytes(file.encode())
    (folder / "engine.toml").write_text(definition)
    return folder


def test_variants_are_read_in_order_and_the_first_one_describes_the_engine(tmp_path: Path) -> None:
    folder = put_family(tmp_path)

    [engine] = ModelDirectory(tmp_path).engines()

    assert not engine.fault
    full, int8 = engine.variants
    assert (full.name, full.file, full.accuracy) == ("full", folder / "full.onnx", 0.884)
    assert (full.origin, full.backend) == (Origin.MEASURED, "onnxruntime")
    assert (int8.file, int8.accuracy, int8.origin) == (
        *(folder / "small/int8.onnx", None),
        Origin.DECLARED,
    )
    assert (engine.file, engine.accuracy, engine.variant) == (full.file, 0.884, "")
    alone = engine.of_variant("int8")
    assert (alone.file, alone.variants, alone.variant) == (int8.file, (), "int8")
    assert engine.of_variant("").file == full.file


def test_engine_without_variants_has_none(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/model.onnx").write_bytes(b"model")

    engine = ModelDirectory(tmp_path).get("plain")

    assert engine.variants == ()
    assert engine.of_variant("") is engine
    with pytest.raises(EngineUnusable, match="has no variant 'int8'; its variants: none"):
        engine.of_variant("int8")


def test_machine_may_lack_files_of_some_variants(tmp_path: Path) -> None:
    folder = put_family(tmp_path)
    (folder / "full.onnx").unlink()

    engine = ModelDirectory(tmp_path).get("net")

    assert not engine.fault
    assert [each.name for each in engine.variants] == ["int8"]
    assert engine.lacking == ("full",)
    assert (engine.file, engine.accuracy) == (folder / "small/int8.onnx", None)
    with pytest.raises(EngineUnusable, match="the file of variant 'full' is missing"):
        engine.of_variant("full")

    (folder / "small/int8.onnx").unlink()
    assert "none of the files of its 2 variants" in ModelDirectory(tmp_path).get("net").fault


def test_digest_of_each_variant_is_checked(tmp_path: Path) -> None:
    right = hashlib.sha256(b"full.onnx").hexdigest()
    given = FAMILY.replace('name = "full"', f'name = "full"\nsha256 = "{right.upper()}"')
    put_family(tmp_path, given + f'sha256 = "{"0" * 64}"\n')

    engine = ModelDirectory(tmp_path).get("net")

    assert engine.of_variant("full").verified_digest() == right
    with pytest.raises(EngineUnusable, match=r"int8\.onnx is not the file"):
        engine.of_variant("int8").verified_digest()


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("variants = 3", "variants must be a list, not an integer"),
        ("variants = [1]", "variants 1 must be a table, not an integer"),
        ('[[variants]]\nfile = "a.onnx"', "variants 1: name is missing"),
        ('[[variants]]\nname = "a"', "variants 1: file is missing"),
        ('[[variants]]\nname = "a/b"\nfile = "a.onnx"', "not a valid variant name"),
        ('[[variants]]\nname = "a"\nfile = "../a.onnx"', "has to be in the engine's folder"),
        ('[[variants]]\nname = "a"\nfile = "/a.onnx"', "has to be in the engine's folder"),
        ('[[variants]]\nname = "a"\nfile = "2/a.onnx"', "in the folder of another version"),
        ('[[variants]]\nname = "a"\nfile = "."', "has to be in the engine's folder"),
        ('[[variants]]\nname = "a"\nfile = "a.onnx"\nsha256 = "0"', "64 hexadecimal digits"),
        (
            '[[variants]]\nname = "a"\nfile = "a.onnx"\naccuracy = nan',
            "must be a number of at least 0",
        ),
        (
            '[[variants]]\nname = "a"\nfile = "a.onnx"\naccuracy = 2',
            "must be a number of at most 1",
        ),
        (
            '[[variants]]\nname = "a"\nfile = "a.onnx"\nacuracy = 1',
            "no setting acuracy; did you mean accuracy?",
        ),
        (
            '[[variants]]\nname = "a"\nfile = "a.onnx"\norigin = "measured"',
            "the origin of variant 'a' is that of its accuracy",
        ),
        (
            '[[variants]]\nname = "a"\nfile = "a.onnx"\naccuracy = 1\norigin = "dreamt"',
            "must be one of measured, published, declared",
        ),
        (
            '[[variants]]\nname = "a"\nfile = "a.onnx"\n[[variants]]\nname = "a"\nfile = "b.onnx"',
            "two variants have the name 'a'",
        ),
        (
            '[[variants]]\nname = "a"\nfile = "a"\n[[variants]]\nname = "b"\nfile = "./a"',
            "two variants have the file 'a'",
        ),
        (
            'file = "full.onnx"\n[[variants]]\nname = "a"\nfile = "full.onnx"',
            "with variants, each of them has its own file",
        ),
        (
            "".join(f'[[variants]]\nname = "v{i}"\nfile = "{i}.onnx"\n' for i in range(33)),
            "variants must have at most 32 entries",
        ),
    ],
)
def test_invalid_variants_are_a_fault_of_the_engine(
    tmp_path: Path, variants: str, said: str
) -> None:
    put_family(tmp_path, variants)
    assert said in ModelDirectory(tmp_path).get("net").fault


def test_variant_outside_the_model_directory_is_a_fault(tmp_path: Path) -> None:
    models = tmp_path / "models"
    folder = put_family(models)
    (tmp_path / "outside.onnx").write_bytes(b"model")
    (folder / "full.onnx").unlink()
    (folder / "full.onnx").symlink_to(tmp_path / "outside.onnx")
    assert "leads outside the model directory" in ModelDirectory(models).get("net").fault


def test_versions_do_not_share_the_variants_of_version_1(tmp_path: Path) -> None:
    folder = put_family(tmp_path)
    (folder / "2").mkdir()
    (folder / "2/model.onnx").write_bytes(b"model")

    first, second = ModelDirectory(tmp_path).engines()

    assert (first.name, len(first.variants)) == ("net", 2)
    assert (second.name, second.variants, second.fault) == ("net/2", (), "")
    assert second.title == "a family"


def test_version_may_have_variants_of_its_own(tmp_path: Path) -> None:
    put_family(tmp_path / "net", engine="2")

    [engine] = ModelDirectory(tmp_path).engines()

    assert (engine.name, engine.fault) == ("net/2", "")
    assert [each.name for each in engine.variants] == ["full", "int8"]


def test_package_has_the_files_of_all_variants(tmp_path: Path) -> None:
    folder = put_family(tmp_path)
    package = pack(folder, "net", 1)
    paths = {file.path for file in package.manifest.files}
    assert paths == {"engine.toml", "full.onnx", "small/int8.onnx"}
    assert (package.manifest.model, package.manifest.backend) == ("full.onnx", "onnxruntime")

    (folder / "full.onnx").unlink()
    assert pack(folder, "net", 1).manifest.model == "small/int8.onnx"


def test_written_variants_are_read_again(tmp_path: Path) -> None:
    variants = (
        VariantKeys(name="full", file="full.onnx", sha256="0" * 64, accuracy=0.0),
        VariantKeys(name="int8", file="int8.onnx", accuracy=0.5, origin=Origin.PUBLISHED),
        VariantKeys(name="p50", file="p50.onnx"),
    )
    title = 'a "family"'
    tables = [each.to_table() for each in variants]
    write_definition(
        tmp_path,
        {
            "title": title,
            "exit": {"output": "y", "threshold": 0.9},
            "max_batch": 4,
            "variants": tables,
        },
    )

    found = read_definition(tmp_path / "engine.toml")

    assert found.variants == variants
    assert (found.title, found.max_batch, found.exit) == (title, 4, Exit(output="y", threshold=0.9))
    assert (found.file, found.sha256, found.accuracy) == ("full.onnx", "0" * 64, 0.0)


def test_control_characters_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="control characters"):
        write_definition(tmp_path, {"variants": [{"name": "a\nb"}]})
