"""The alerts and the dashboard agree with their documentation and with the metrics."""

import re
from pathlib import Path

import pytest

from deploy.grafana import dashboard

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


def test_dashboard_is_the_one_that_its_program_writes() -> None:
    assert dashboard.TARGET.read_text() == dashboard.build()


@pytest.mark.parametrize("text", [RULES, dashboard.build()], ids=["alerts", "dashboard"])
def test_alerts_and_dashboard_use_documented_metrics(text: str) -> None:
    documented = re.findall(r"`(\w+)`", METRICS)
    used = {name.removesuffix("_bucket") for name in re.findall(r"\bsynergai_(\w+)", text)}
    assert used - {"build_info"}
    assert used <= set(documented)
