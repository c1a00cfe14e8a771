"""Pages, figures and tables as files."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from profiler.reports.charts import (
    Axis,
    Bars,
    Boxes,
    Chart,
    Cloud,
    Dots,
    Lines,
    Polyline,
    Scatter,
    Series,
    Shares,
)
from profiler.reports.document import Answer, Figure, Note, Report, Section, Table
from profiler.reports.drawing import draw_svg
from profiler.reports.statistics import Distribution
from profiler.reports.writing import to_csv, write_report
from synergai.errors import InvalidInput

LONG = "engine-" + "x" * 100
CHARTS: list[Chart] = [
    Dots(
        title="Dots <&>",
        rows=("a", LONG),
        series=(
            Series(name="one", values=(1.0, None)),
            Series(name="$two$", values=(300.0, 2.0), hollow=True),
        ),
        axis=Axis("queries per second", log=True),
    ),
    Dots(title="Nothing", rows=(), series=(), axis=Axis("s")),
    Boxes(
        title="Boxes",
        rows=("a", "b", "c"),
        boxes=(Distribution.of([1.0, 2.0, 9.0]), None, Distribution.of([4.0])),
        axis=Axis("s"),
        highlighted=("a",),
        p99=True,
    ),
    Boxes(
        title="Zero",
        rows=("a",),
        boxes=(Distribution.of([0.0, 0.0]),),
        axis=Axis("s", log=True),
    ),
    Bars(
        title="Bars",
        rows=("a", "b", "c"),
        values=(0.0, None, 5000.0),
        axis=Axis("s", log=True),
        errors=(0.0, 0.0, 2.0),
        printed=(1.0, None, 3.0),
    ),
    Lines(
        title="Lines",
        lines=(
            Polyline(name="a", points=((1.0, 1.0), (2.0, 1.5)), emphasis=True),
            Polyline(name="b", points=((1.0, 1.0), (2.0, 2.0)), dashed=True),
            Polyline(name="c", points=((1.0, 1.0),)),
        ),
        x=Axis("threads", log=True),
        y=Axis("times"),
    ),
    Shares(
        title="Shares",
        rows=("a", "b"),
        parts=(
            Series(name="x86", values=(0.75, None)),
            Series(name="agx", values=(0.25, 1.0)),
        ),
        axis=Axis("% of the time"),
    ),
    Scatter(
        title="Scatter",
        clouds=(Cloud(name="a", points=((1.0, 2.0), (3.0, 1.0)), line=True),),
        x=Axis("QPS", log=True),
        y=Axis("QPS/W"),
        lines_at=(("median", 2.0),),
    ),
]


def a_report() -> Report:
    data = Table(columns=("name", "value"), rows=(("a,b", 1.5), ("c", None)), file="data")
    figure = Figure(
        key="figure",
        title="A title.",
        caption="What <b>it</b> shows.",
        panels=tuple(CHARTS),
        columns=3,
        data=data,
    )
    table = Table(
        columns=("name", "value"), rows=(("a", 1234.5), ("b", None)), caption="C", file="table"
    )
    return Report(
        title="Report <script>",
        summary="Summary & more.",
        facts=(("Source", "x"),),
        banner="Careful.",
        findings=(Answer("Why?", "Because."),),
        sections=(
            Section(
                key="one",
                title="One",
                blocks=(figure, Note("n"), table),
            ),
        ),
        colophon="Made now.",
    )


class Reader(HTMLParser):
    """Checks that elements nest, and collects what a browser would fetch, and ids."""

    VOID = frozenset(("meta", "link", "br", "img"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "poster", "srcset"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of a report, in a folder that did not exist."""
    return write_report(a_report(), tmp_path_factory.mktemp("report") / "deep" / "folder")


def test_page_is_one_well_formed_file_that_needs_no_network(paths: list[Path]) -> None:
    page = paths[0].read_text("utf-8")
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert all(reference.startswith("#") for reference in reader.references)
    assert {reference[1:] for reference in reader.references} <= set(reader.ids)
    assert not reader.tags & {"script", "iframe", "img", "object", "link"}
    assert "@import" not in page
    assert all(address.startswith("#") for address in re.findall(r"url\((.*?)\)", page))
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) <= namespaces
    assert "Report &lt;script&gt;" in page
    assert "What &lt;b&gt;it&lt;/b&gt; shows." in page
    assert "1,234" in page


def test_files_are_written_beside_the_page(paths: list[Path]) -> None:
    assert [path.name for path in paths] == ["report.html", "figure.png", "data.csv", "table.csv"]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert list(csv.reader(paths[2].read_text("utf-8").splitlines())) == [
        ["name", "value"],
        ["a,b", "1.5"],
        ["c", ""],
    ]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_chart_is_a_well_formed_element_with_ids_of_its_own(chart: Chart) -> None:
    svg = draw_svg(chart, "panel-1")
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert all(each is not None and each.startswith("panel-1-") for each in ids)
    assert chart.title in "".join(root.itertext())
    assert draw_svg(chart, "panel-1") == svg  # the same every time


def test_unknown_values_are_empty_in_csv() -> None:
    assert to_csv(Table(columns=("a", "b"), rows=((None, 0.5),))) == "a,b\n,0.5\n"


def test_a_folder_that_cannot_be_written_is_an_error_for_people(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidInput, match="cannot write the report"):
        write_report(a_report(), file / "folder")
