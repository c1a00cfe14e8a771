import re
from pathlib import Path
from typing import Final

_GUIDE: Final = Path(__file__).parents[1] / "docs" / "guide"


def blocks(name: str) -> dict[str, list[str]]:
    """Return the lines of commands of a page, by the heading above them."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"(?m)^#+ ", (_GUIDE / f"{name}.md").read_text())[1:]:
        heading, _, text = section.partition("\n")
        for language, block in re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```$", text):
            if not language:
                found.setdefault(heading, []).extend(line.strip() for line in block.splitlines())
    return found
