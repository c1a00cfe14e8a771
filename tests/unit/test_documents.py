"""Links between documents, and the index of decision records."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """What headings are called in links, as GitHub does it."""
    headings = re.findall(r"(?m)^#+ (.*)$", document.read_text())
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_page_of_a_request_names_what_its_files_have() -> None:
    text = (ROOT / "docs" / "maintainers" / "request.md").read_text()
    sources = {file: (ROOT / file).read_text() for file in re.findall(r"`([\w/]+\.py)`", text)}
    for name, file in re.findall(r"`([\w.]+)`\s+(?:\(|in )`([\w/]+\.py)`", text):
        for part in name.split("."):
            assert re.search(rf"(class|def) {part}\b", sources[file]), (name, file)


def test_the_list_of_decisions_is_complete_and_in_order() -> None:
    folder = ROOT / "docs" / "maintainers" / "decisions"
    numbered = sorted(path.name for path in folder.glob("0*.md"))
    index = (folder / "README.md").read_text()
    assert LINK.findall(index) == numbered
    for name in numbered:
        number, title = (
            (folder / name).read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        )
        assert f"{number}. [{title}]({name})" in index


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_row_of_a_table_follows_its_heading(document: Path) -> None:
    # Markdown shows a row behind an empty line as text.
    for first in re.findall(r"(?m)(?:\A|(?<=\n\n))\|.*\n.*$", document.read_text()):
        assert re.fullmatch(r"\|.*\n\|[-:| ]+\|", first), first
