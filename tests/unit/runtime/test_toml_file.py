"""TOML files that people write."""

from pathlib import Path

from synergai.runtime.toml_file import load_toml


def test_values_with_many_dots_are_no_deep_key(tmp_path: Path) -> None:
    values = [0.5, -1.25e-3] * 100
    text = "1.2.3... " * 20
    path = tmp_path / "settings.toml"
    path.write_text(f'a.b.c = {values}\ntext = "{text}"\n')
    assert load_toml(path, "settings") == {"a": {"b": {"c": values}}, "text": text}
