"""What is written from the chart's values is current."""

import json

from deploy.kubernetes.values import CHART, readme, updated


def schema() -> dict[str, object]:
    read: dict[str, object] = json.loads((CHART / "values.schema.json").read_text())
    return read


def test_schema_knows_the_options_of_gateway_and_agent() -> None:
    assert schema() == updated(schema()), "run python -m deploy.kubernetes.values"


def test_page_of_the_values_is_current() -> None:
    written = readme((CHART / "values.yaml").read_text(), schema())
    assert (CHART / "README.md").read_text() == written, "run python -m deploy.kubernetes.values"
