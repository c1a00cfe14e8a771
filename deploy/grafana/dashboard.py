"""Writes ``synergai.json``, a dashboard for Grafana, next to this file.

    python -m deploy.grafana.dashboard

Import it into Grafana 10 or newer, and choose the Prometheus that scrapes the gateways.
"""

from pathlib import Path
from typing import Final, NamedTuple

from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

TARGET: Final = Path(__file__).parent / "synergai.json"
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")
_LATE: Final = 'outcome=~"late|expired|rejected"'
_COUNTED: Final = 'outcome!~"cancelled|invalid"'
"""Outcomes that say something of the service."""


class Chart(NamedTuple):
    """A panel.

    Attributes:
        queries: pairs of expression and legend.
        unit: as Grafana calls it.
        single: shows the last value as a figure instead of a graph.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""
    single: bool = False


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Return the expression of a counter's rate, summed over the selected gateways."""
    chosen = f'instance=~"$gateway"{", " if where else ""}{where}'
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate(synergai_{metric}{{{chosen}}}[$__rate_interval]))"


def gauge(metric: str, by: str = "") -> str:
    """Return the expression of a gauge, summed over the selected gateways."""
    grouped = f" by ({by}) " if by else ""
    return f'sum{grouped}(synergai_{metric}{{instance=~"$gateway"}})'


def share(part: str, whole: str) -> str:
    """Return the expression of a part of a whole."""
    return f"{part} / {whole}"


def quantile(metric: str, level: float) -> str:
    """Return the expression of a quantile of a histogram, by engine."""
    return f"histogram_quantile({level}, {rate(f'{metric}_bucket', 'engine, le')})"


ROWS: Final = {
    "Overview": (
        Chart("Workers", "none", ((gauge("workers"), ""),), single=True),
        Chart("Waiting", "none", ((gauge("queue_depth"), ""),), single=True),
        Chart(
            "Goodput",
            "reqps",
            ((rate("requests_total", where='outcome="ok"'), ""),),
            "Requests that ended in time, or had no deadline.",
            single=True,
        ),
        Chart(
            "Late",
            "percentunit",
            (
                (
                    share(
                        rate("requests_total", where=_LATE), rate("requests_total", where=_COUNTED)
                    ),
                    "",
                ),
            ),
            "Requests that missed their deadlines, were rejected or expired.",
            single=True,
        ),
    ),
    "Requests": (
        Chart(
            "Requests by outcome",
            "reqps",
            ((rate("requests_total", "outcome"), "{{outcome}}"),),
        ),
        Chart("Requests in flight", "none", ((gauge("requests_in_flight"), "{{instance}}"),)),
        Chart(
            "Time in the queue",
            "s",
            (
                (quantile("request_queue_seconds", 0.5), "{{engine}} p50"),
                (quantile("request_queue_seconds", 0.99), "{{engine}} p99"),
            ),
        ),
        Chart(
            "Time from the first dispatch",
            "s",
            (
                (quantile("request_run_seconds", 0.5), "{{engine}} p50"),
                (quantile("request_run_seconds", 0.99), "{{engine}} p99"),
                (quantile("request_estimated_run_seconds", 0.5), "{{engine}} p50, estimated"),
            ),
        ),
    ),
    "Jobs": (
        Chart("Queries by engine", "ops", ((rate("queries_total", "engine"), "{{engine}}"),)),
        Chart("Jobs by outcome", "ops", ((rate("jobs_total", "outcome"), "{{outcome}}"),)),
        Chart(
            "Time in the queue",
            "s",
            (
                (quantile("job_queue_seconds", 0.5), "{{engine}} p50"),
                (quantile("job_queue_seconds", 0.99), "{{engine}} p99"),
            ),
        ),
        Chart(
            "Missed deadlines",
            "ops",
            (
                (rate("job_deadline_violations_total", "engine"), "{{engine}} jobs"),
                (rate("request_deadline_violations_total", "engine"), "{{engine}} requests"),
            ),
        ),
    ),
    "Workers": (
        Chart(
            "Busy",
            "percentunit",
            ((rate("worker_busy_seconds_total", "worker"), "{{worker}}"),),
            "Time that engines compute; above 100 % where several run concurrently.",
        ),
        Chart("Queries", "ops", ((rate("worker_queries_total", "worker"), "{{worker}}"),)),
        Chart(
            "Error of estimates",
            "percentunit",
            (
                (
                    share(
                        rate("worker_estimate_error_seconds_total", "worker"),
                        rate("worker_run_seconds_total", "worker"),
                    ),
                    "{{worker}}",
                ),
            ),
            "Mean absolute error of the estimated time of assignments.",
        ),
        Chart(
            "Pace",
            "none",
            (
                (
                    'max by (worker, engine) (synergai_worker_pace_ratio{instance=~"$gateway"})',
                    "{{worker}} {{engine}}",
                ),
            ),
            "Observed over profiled time per query.",
        ),
        Chart("Power", "watt", ((gauge("worker_power_watts", "worker"), "{{worker}}"),)),
        Chart(
            "Placed engines",
            "none",
            ((gauge("worker_placements", "worker, state"), "{{worker}} {{state}}"),),
        ),
    ),
    "Gateway": (
        Chart(
            "Room for jobs",
            "none",
            (
                (gauge("journal_writable", "instance"), "{{instance}} accepts jobs"),
                (gauge("paused_jobs", "instance"), "{{instance}} paused jobs"),
            ),
        ),
        Chart(
            "Disk",
            "bytes",
            (
                (gauge("store_bytes", "instance"), "{{instance}} store"),
                (gauge("stored_upload_bytes", "instance"), "{{instance}} uploads"),
                (gauge("stored_result_bytes", "instance"), "{{instance}} results"),
            ),
        ),
        Chart(
            "Refused and ejected",
            "ops",
            (
                (rate("refused_agents_total"), "refused agents"),
                (rate("ejections_total"), "ejected workers"),
                (rate("stale_reports_total"), "stale reports"),
            ),
        ),
    ),
}
"""Panels by row."""


def build() -> str:
    """Return the dashboard as JSON."""
    board = (
        Dashboard("SynergAI")
        .uid("synergai")
        .tags(["synergai"])
        .refresh("10s")
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("gateway")
            .label("Gateway")
            .datasource(_SOURCE)
            .query("label_values(synergai_build_info, instance)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for title, charts in ROWS.items():
        board = board.with_row(Row(title))
        for chart in charts:
            board = board.with_panel(_panel(chart))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _panel(chart: Chart) -> Stat | TimeSeries:
    panel: Stat | TimeSeries
    if chart.single:
        panel = Stat().span(6).height(4)
    else:
        legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST)
        tooltip = VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        panel = TimeSeries().span(12).height(8).fill_opacity(10).min(0).tooltip(tooltip)
        panel.legend(legend.placement(LegendPlacement.BOTTOM).show_legend(True))
    panel.title(chart.title).description(chart.text).unit(chart.unit).datasource(_SOURCE)
    for ref, (expression, legend_format) in zip("ABCDEFGH", chart.queries, strict=False):
        query = Dataquery().expr(expression).legend_format(legend_format).ref_id(ref)
        panel.with_target(query)
    return panel


if __name__ == "__main__":
    TARGET.write_text(build())
