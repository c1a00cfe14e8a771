"""The names that the package exports."""

import ast
from pathlib import Path

import pytest

import synergai


def declared_names() -> list[str]:
    """Return the names that the package imports for type checkers."""
    tree = ast.parse(Path(synergai.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return [alias.asname for node in imports for alias in node.names if alias.asname]


@pytest.mark.parametrize("name", declared_names())
def test_every_declared_name_can_be_imported(name: str) -> None:
    assert getattr(synergai, name).__name__ == name


def test_declared_names_are_the_exported_ones() -> None:
    assert set(declared_names()) <= set(dir(synergai))
    exported = {name for names in synergai._EXPORTS.values() for name in names}
    assert exported == set(declared_names())
