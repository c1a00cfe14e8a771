"""Timeline plot of one run: assignments by worker, and jobs with their deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib import colormaps
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from profiler.reports.drawing import make_figure, plain_ticks, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from profiler.simulator.simulation import SimulationRun
    from synergai.domain import JobId

_IN_TIME: Final = "#1b7837"
_LATE: Final = "#b2182b"


def plot_timeline(run: SimulationRun, path: Path) -> Path:
    """Plot a run: workers above, jobs below, on a common time axis."""
    figure = make_figure(14.0, 9.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2])
    workload = run.workload
    numbers = {job.id: number for number, job in enumerate(workload.jobs)}
    colours = [colormaps["tab20"](number % 20) for number in numbers.values()]
    _draw_workers(above, run, numbers, colours)
    _draw_jobs(below, run, colours)
    below.set_xlabel("time (s)")
    plain_ticks(below, "x")
    figure.suptitle(
        f"{run.policy}, {workload.experiment}, seed {workload.seed}, {workload.sessions} sessions"
    )
    return save(figure, path)


def _draw_workers(
    axes: Axes,
    run: SimulationRun,
    numbers: dict[JobId, int],
    colours: list[tuple[float, float, float, float]],
) -> None:
    names = list(map(str, run.workload.workers))
    for span in run.spans:
        row, colour = names.index(span.worker_id), colours[numbers[span.job_id]]
        setup_s, queries_s = span.ready - span.started, span.ended - span.ready
        axes.barh(row, setup_s, left=span.started, color="white", edgecolor=colour, hatch="////")
        axes.barh(row, queries_s, left=span.ready, color=colour, edgecolor="white")
        if queries_s > 0:
            middle = span.ready + queries_s / 2
            axes.text(middle, row, span.job_id, ha="center", va="center", fontsize=7, clip_on=True)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_ylabel("worker")
    axes.legend(
        handles=[
            Patch(facecolor="white", edgecolor="black", hatch="////", label="setup"),
            Patch(color="#7f7f7f", label="queries, in the colour of the job"),
        ],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=2,
        fontsize=8,
    )


def _draw_jobs(
    axes: Axes, run: SimulationRun, colours: list[tuple[float, float, float, float]]
) -> None:
    jobs = run.workload.jobs
    for row, job in enumerate(jobs):
        axes.barh(row, job.deadline - job.arrival, left=job.arrival, color="#e0e0e0")
        for span in run.spans:
            if span.job_id == job.id:
                length = span.ended - span.started
                axes.barh(row, length, left=span.started, height=0.4, color=colours[row], alpha=0.8)
        finished = run.finished.get(job.id)
        if finished is not None:
            late = finished > job.deadline
            axes.plot(finished, row, "x" if late else "o", color=_LATE if late else _IN_TIME)
    axes.set_yticks(range(len(jobs)), [f"{job.id} {job.engine}" for job in jobs], fontsize=7)
    axes.invert_yaxis()
    axes.set_ylabel("job")
    axes.legend(
        handles=[
            Patch(color="#e0e0e0", label="arrival to deadline"),
            Line2D([], [], color=_IN_TIME, marker="o", linestyle="", label="completed in time"),
            Line2D([], [], color=_LATE, marker="x", linestyle="", label="completed late"),
        ],
        loc="upper right",
        fontsize=8,
    )
