"""A LoadGen run in its own process: ``python -m profiler.loadgen.run``.

LoadGen keeps its state per process and cannot be stopped, so every run gets a process, which
exits to abort the run. The test has its own thread; the main thread reports progress and aborts
the run on an error or timeout.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

import uvloop
from msgspec.structs import replace

from profiler.loadgen.async_system import AsyncSystem, QueryCounter
from profiler.loadgen.library import ACCURACY_FILE, SampleSet, dataset_library, samples_for
from profiler.loadgen.loadgen_settings import LoadgenSettings
from profiler.loadgen.mlperf import log_settings, run_test, scenario_settings
from profiler.loadgen.outcome import LoadProgress, Message, RunCounts, RunFailed
from profiler.report_pipe import send_report
from synergai.client.client import Client
from synergai.errors import InternalError, SynergaiError, Unavailable
from synergai.models.processing import CLASSES
from synergai.runtime.settings import decode_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import mlperf_loadgen

    from profiler.loadgen.library import SampleLibrary
    from synergai.domain import Engine


REPORT_INTERVAL_S: Final = 0.1
_OFFLINE_WINDOW: Final = 64
"""Samples in flight in the scenario Offline."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run LoadGen and report on the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help="settings of the run, as JSON")
    parser.add_argument("--report", type=int, required=True, help="inherited file descriptor")
    options = parser.parse_args(arguments)
    # A terminal's Ctrl-C reaches the whole process group; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def report(message: Message) -> None:
        try:
            send_report(options.report, message)
        except BrokenPipeError:
            os._exit(1)  # the parent is gone

    settings = decode_config(options.settings, LoadgenSettings)
    counter = QueryCounter(None if settings.qos_ms is None else settings.qos_ms / 1e3)
    try:
        report(_run(settings, counter, report))
    except SynergaiError as error:
        report(RunFailed(str(error)))
        return 1
    return 0


def _run(
    settings: LoadgenSettings, counter: QueryCounter, report: Callable[[Message], None]
) -> RunCounts:
    library = _library(settings, uvloop.run(_describe(settings)))
    with AsyncSystem(
        _client(settings),
        settings.engine,
        library,
        deadline_s=settings.qos_ms / 1e3 if settings.qos_ms and settings.enforce else None,
        window=_OFFLINE_WINDOW if settings.scenario == "Offline" else None,
        logs_responses=settings.mode == "accuracy",
        counter=counter,
    ) as system:

        def prepare() -> mlperf_loadgen.TestSettings:
            test_settings = scenario_settings(settings, system.warm_up())
            counter.reset()
            return test_settings

        logs = log_settings(settings.output)
        test = threading.Thread(target=_run_test, args=(system, library, prepare, logs, counter))
        test.start()
        _watch(counter, test, settings.query_timeout, report)
    return _with_accuracy(counter.counts(library.origin), library, settings)


def _client(settings: LoadgenSettings) -> Client:
    return Client(settings.target, attempts=1, **settings.connection())


async def _describe(settings: LoadgenSettings) -> Engine:
    async with _client(settings) as client:
        return await client.engine(settings.engine)


def _library(settings: LoadgenSettings, engine: Engine) -> SampleLibrary:
    if settings.dataset is not None and settings.data is not None:
        return dataset_library(settings.dataset, settings.data, engine)
    samples, origin = samples_for(engine, settings.models, settings.samples)
    has_classes = engine.postprocess == CLASSES
    return SampleSet(samples, origin, engine.outputs[0].name, has_classes=has_classes)


def _with_accuracy(
    counts: RunCounts, library: SampleLibrary, settings: LoadgenSettings
) -> RunCounts:
    """Add the accuracy to the counts, in accuracy mode with ground truth."""
    if settings.mode != "accuracy":
        return counts
    accuracy = library.evaluate(settings.output / ACCURACY_FILE)
    if accuracy is None:
        return counts
    return replace(
        counts,
        measure=accuracy.measure,
        accuracy=accuracy.value,
        evaluated=accuracy.samples,
    )


def _watch(
    counter: QueryCounter,
    test: threading.Thread,
    query_timeout: float,
    report: Callable[[Message], None],
) -> None:
    """Report progress until the test ends; exit the process on an error or timeout."""
    ended = False
    while not ended:
        test.join(REPORT_INTERVAL_S)
        # Read before the error, which the test sets before it ends.
        ended = not test.is_alive()
        error = counter.error
        if error is None and not ended and counter.stalled_s() > query_timeout:
            error = Unavailable(f"no response for {query_timeout:g} s")
        if error is not None:
            report(
                RunFailed(
                    f"{error} (after {counter.done:,} queries)" if counter.done else str(error)
                )
            )
            os._exit(1)  # a running test cannot be stopped otherwise
        report(LoadProgress(counter.done, counter.elapsed_s()))


def _run_test(
    system: AsyncSystem,
    library: SampleLibrary,
    prepare: Callable[[], mlperf_loadgen.TestSettings],
    logs: mlperf_loadgen.LogSettings,
    counter: QueryCounter,
) -> None:
    try:
        run_test(
            system.issue,
            prepare(),
            logs,
            count=library.count,
            performance_count=library.performance_count,
            load=library.load,
            unload=library.unload,
        )
    except SynergaiError as error:  # the warm-up failed, or a sample cannot be read
        counter.fail(error)
    except BaseException as error:
        counter.fail(InternalError(f"the test failed: {error!r}"))
        raise  # the log of the process gets the traceback


if __name__ == "__main__":
    sys.exit(main())
