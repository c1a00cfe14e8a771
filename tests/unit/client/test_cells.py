from pathlib import Path

import pytest

from synergai.client.target import Cell, cell_of, cells_of
from synergai.errors import InvalidInput

MAP = """
[vision]
gateways = "a:8001,b:8001"
engines = ["resnet*", "yolo"]

[rest]
gateways = "c:8001"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "cells.toml").write_text(MAP)
    return tmp_path / "cells.toml"


def test_engine_belongs_to_the_first_cell_with_a_matching_pattern(path: Path) -> None:
    cells = cells_of(f"@{path}")
    assert [cell_of(cells, name) for name in ("resnet50", "resnet50/2", "yolo", "yolo5")] == [
        *("vision", "vision", "vision"),
        "rest",
    ]
    assert cell_of({"vision": cells["vision"]}, "bert") == ""


def test_target_is_a_map_a_cell_of_it_or_an_address(path: Path) -> None:
    vision = Cell("a:8001,b:8001", ("resnet*", "yolo"))
    assert cells_of(f"@{path}") == {"vision": vision, "rest": Cell("c:8001")}
    assert cells_of(f"@{path}:vision") == {"vision": vision}
    assert cells_of("a:8001,b:8001") == {"": Cell("a:8001,b:8001")}
    with pytest.raises(InvalidInput, match="has no cell 'other', but vision, rest"):
        cells_of(f"@{path}:other")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has no cell: write a table"),
        ("[a]\nengines = []", "gateways is missing"),
        (
            "[a]\ngateways = 'b:1'\nengine = 'x'",
            r"no setting engine; did you mean engines\?",
        ),
        ("[a", "is not TOML"),
    ],
)
def test_map_that_cannot_be_used_is_refused_by_name(path: Path, text: str, fault: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidInput, match=f"(?s)cells {path}.*{fault}"):
        cells_of(f"@{path}")


def test_missing_map_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        cells_of(f"@{tmp_path / 'none.toml'}")
