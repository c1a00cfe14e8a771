"""The alerts for Prometheus, their tests and the page that says what to do agree."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "deploy" / "prometheus" / "synergai.rules.yml").read_text()
RULE_TESTS = (ROOT / "deploy" / "prometheus" / "synergai.rules.test.yml").read_text()
PAGE = (ROOT / "docs" / "guide" / "alerts.md").read_text()
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()
ALERTS = re.findall(r"alert: (\w+)", RULES)


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    assert re.findall(r"(?m)^## (\w+)$", PAGE) == ALERTS


def test_each_alert_is_tested_to_fire_and_to_resolve() -> None:
    tests = re.findall(r"alertname: (\w+)(\}?)", RULE_TESTS)
    assert {name for name, quiet in tests if not quiet} == set(ALERTS)
    assert {name for name, quiet in tests if quiet} == set(ALERTS)


def test_alerts_use_documented_metrics() -> None:
    documented = re.findall(r"`(\w+)`", METRICS)
    used = set(re.findall(r"\bsynergai_(\w+)", RULES))
    assert used
    assert used <= set(documented)
