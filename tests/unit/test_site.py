"""The documentation site: what it is made of, without building it."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import synergai
from deploy.docs.pages import SDK, error_names, pages
from gateway.gateway_settings import GatewaySettings
from synergai.cli.main import APPLICATIONS
from synergai.errors import SynergaiError
from synergai.runtime.settings import options_of
from tests.unit.test_public_api import declared_names

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return pages()


def test_navigation_has_every_page_once(generated: dict[str, str]) -> None:
    listed = re.findall(r"(?m)^ +- (?:\w+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text())
    written = [
        path.relative_to(ROOT / "docs").as_posix()
        for path in ROOT.glob("docs/**/*.md")
        if not path.name[0].isdecimal()  # decisions
    ]
    assert sorted(listed) == sorted(
        [*written, *generated, "start.md", "examples.md", "changelog.md"]
    )


def test_reference_has_every_public_name() -> None:
    assert sorted([*(name for names in SDK.values() for name in names), *error_names()]) == sorted(
        declared_names()
    )


@pytest.mark.parametrize("name", declared_names())
def test_every_public_name_and_its_methods_are_explained(name: str) -> None:
    found = getattr(synergai, name)
    assert inspect.getdoc(found), name
    for member, value in vars(found).items():
        if not member.startswith("_") and inspect.isroutine(value):
            assert inspect.getdoc(value), member


def test_every_command_and_its_options_are_described(generated: dict[str, str]) -> None:
    for name in APPLICATIONS:
        assert f"# synergai {name}\n" in generated[f"reference/commands/{name}.md"]
    page = generated["reference/commands/gateway.md"]
    assert "## synergai gateway backup\n" in page
    assert "| `--settings DIR` | Settings, such as /etc/synergai. |" in page
    assert str(Path.home()) not in page


def test_every_setting_is_described(generated: dict[str, str]) -> None:
    page = generated["reference/settings.md"]
    for name, option in options_of(GatewaySettings).items():
        assert (f"`{GatewaySettings.env_var(name)}`" in page) is bool(option.description), name


def test_every_error_has_its_codes_or_those_of_its_class(generated: dict[str, str]) -> None:
    page = generated["reference/errors.md"]
    for name in error_names():
        if getattr(synergai, name) is not SynergaiError:
            assert f"| `{name}` |" in page


def test_every_rest_call_is_described(generated: dict[str, str]) -> None:
    page = generated["reference/rest.md"]
    assert "## POST /v2/models/{name}/infer\n" in page
    assert "| body `application/json` | [InferenceRequest](#inferencerequest) |" in page


def test_version_has_a_section_of_the_changelog_and_a_saved_state() -> None:
    assert f"\n## {VERSION}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "tests" / "saved_states" / f"{VERSION}.tar.gz").is_file()
