"""Registry of named implementations."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from synergai.runtime import plugins
from synergai.runtime.plugins import Registry

POLICIES = Registry[object](
    "synergai.policies",
    {
        "plain": "synergai.core.scheduling.policies.fifo:Fifo",
        "rich": "synergai.core.scheduling.policies.malleable.policy:Malleable",
    },
)


def test_unknown_option_is_rejected_by_name() -> None:
    with pytest.raises(InvalidInput, match="'plain' has no option 'colour'; it takes none"):
        POLICIES.create("plain", {"colour": "red"})


def test_options_reach_the_implementation() -> None:
    assert POLICIES.create("rich", {"gain": "0.5"}) is not None
    with pytest.raises(InvalidInput, match="are numbers"):
        POLICIES.create("rich", {"gain": "much"})


def test_unknown_name_is_rejected_with_the_available_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'odd' is not in .*; available: .*plain"):
        POLICIES.create("odd", {})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_missing_package", "No module named 'a_missing_package'"),
        ("raise RuntimeError('not on this\\nmachine')", "not on this machine"),
        ("OTHER = 1", "has no attribute 'Policy'"),
    ],
)
def test_plugin_that_cannot_be_imported_is_named_with_the_reason(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"plugin_{len(source)}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", f"plugin_{len(source)}:Policy", "synergai.policies")
    monkeypatch.setattr(plugins, "_entry_points", lambda _: EntryPoints([point]))

    with pytest.raises(InvalidInput) as caught:
        POLICIES.create("theirs", {})

    assert str(caught.value).startswith("the plug-in 'theirs' of synergai.policies (plugin_")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
