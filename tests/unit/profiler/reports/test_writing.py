"""Pages, with their figures and tables."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from profiler.reports.charts import Bars, Boxes, Chart, Dots, Scatter, Shares, Speedups
from profiler.reports.page import Figure, Report, Section, Table, draw_svg, render, write_report
from profiler.reports.statistics import Distribution
from synergai.errors import InvalidInput

LONG = "engine-" + "x" * 100
CHARTS: list[Chart] = [
    Dots(
        title="Dots <&>",
        label="queries per second",
        log=True,
        rows=("a", LONG),
        series={"one": (1.0, None), "$two$": (300.0, 2.0)},
        hollow=("$two$",),
    ),
    Dots(title="Nothing", label="s", rows=(), series={}),
    Boxes(
        title="Boxes",
        label="s",
        boxes={"a": Distribution.of([1.0, 2.0, 9.0]), "b": None, "c": Distribution.of([4.0])},
        highlighted=("a",),
        p99=True,
    ),
    Boxes(title="Zero", label="s", log=True, boxes={"a": Distribution.of([0.0, 0.0])}),
    Bars(
        title="Bars",
        label="s",
        log=True,
        lengths={"a": 0.0, "b": None, "c": 5000.0},
        errors={"a": 0.0, "b": 0.0, "c": 2.0},
        printed={"a": 1.0, "c": 3.0},
    ),
    Speedups(
        title="Lines",
        x_label="threads",
        y_label="times",
        single=[[(1.0, 1.0)], [(1.0, 1.0), (2.0, 1.4)]],
        single_name="one engine",
        means={"a": [(1.0, 1.0), (2.0, 1.5)]},
        reference=[(1.0, 1.0), (2.0, 2.0)],
    ),
    Shares(
        title="Shares",
        label="% of the time",
        rows=("a", "b"),
        parts={"x86": (0.75, None), "agx": (0.25, 1.0)},
    ),
    Scatter(
        title="Scatter",
        x_label="QPS",
        y_label="QPS/W",
        clouds={"a": [(1.0, 2.0), (3.0, 1.0)]},
        background=[[(2.0, 2.0)]],
        background_name="others",
    ),
]


def a_report(*, is_reconstructed: bool = False) -> Report:
    figure = Figure(
        key="figure",
        title="A title.",
        caption="What <b>it</b> shows in 5 ms.",
        panels=CHARTS,
        columns=3,
    )
    table = Table(
        rows=[{"name": "a", "value": 1234.5}, {"name": "b", "value": None}],
        caption="C",
    )
    return Report(
        title="Report <script>",
        summary="Summary & more.",
        facts={"Source": "x"},
        banner="Careful.",
        is_reconstructed=is_reconstructed,
        findings={"Why?": "Because."},
        sections=[Section("one", "One", [figure, "A <note>.", table])],
        made="Made now.",
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


def test_page_is_one_well_formed_file_that_needs_no_network(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "report.html"
    write_report(a_report(), path)
    page = path.read_text("utf-8")
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
    assert "What &lt;b&gt;it&lt;/b&gt; shows in 5&nbsp;ms." in page
    assert '<p class="note">A &lt;note&gt;.</p>' in page
    assert '<td>a</td><td class="number">1,234</td>' in page.replace("\n", "")


def test_every_caption_says_that_a_profile_is_reconstructed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("profiler.reports.page.draw_svg", lambda *_: "<svg></svg>")
    for is_reconstructed, expected in ((True, 2), (False, 0)):
        page = render(a_report(is_reconstructed=is_reconstructed))
        captions = re.findall(r"<caption>Reconstructed\. C|</strong> Reconstructed\. What", page)
        assert len(captions) == expected


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


def test_a_folder_that_cannot_be_written_is_an_error_for_people(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidInput, match="cannot write "):
        write_report(a_report(), file / "report.html")
