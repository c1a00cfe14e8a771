"""Hooks of MkDocs: they add the generated pages, and lead links out of `docs` somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

from deploy.docs.pages import OPENAPI, ROOT, pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_INCLUDED: Final = {
    "README.md": "start.md",
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "maintainers/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "synergai/__init__.py": "reference/sdk.md",
}
"""Files outside of `docs` that links lead to, and the pages that they are on the site."""
_TOP: Final = ("README.md", "examples/README.md", "CHANGELOG.md")
_PATHS: Final = {_INCLUDED[path]: path for path in _TOP}
_FRAME_WORKER: Final = "assets/iframe-worker.js"
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    texts = pages()
    for path in _TOP:
        texts[_INCLUDED[path]] = (ROOT / path).read_text()
    for path, text in texts.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "openapi.json", content=OPENAPI.read_text()))
    worker = Path(__file__).with_name("iframe-worker.js")
    files.append(File.generated(config, _FRAME_WORKER, content=worker.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead the links of a page to other pages; those to other files of the repository are text."""
    path = page.file.src_uri
    original = _PATHS.get(path, f"docs/{path}")

    def lead(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        found = normpath(join(dirname(original), target))
        if found in _INCLUDED:
            found = _INCLUDED[found]
        elif found.startswith("docs/"):
            found = found.removeprefix("docs/")
        else:
            return text
        return f"{image}[{text}]({relpath(found, dirname(path) or '.')}{anchor or ''})"

    return _LINK.sub(lead, markdown)
