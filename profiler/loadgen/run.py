"""A LoadGen run in its own process: ``python -m profiler.loadgen.run``.

LoadGen keeps its state per process and cannot be stopped, so every run gets a process, which
exits to abort the run. The test has its own thread; the main thread reports progress and aborts
the run on an error or timeout.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from profiler.loadgen.async_system import AsyncSystem
from profiler.loadgen.completion import EMPTY_RESPONSE, QueryCounter, SampleCompleter
from profiler.loadgen.dataset_library import dataset_library
from profiler.loadgen.library import ACCURACY_FILE, SampleSet, samples_for
from profiler.loadgen.loadgen_settings import LoadgenSettings
from profiler.loadgen.messages import MESSAGE_CODEC, LoadProgress, Message, RunCounts, RunFailed
from profiler.loadgen.mlperf import log_settings, run_test, scenario_settings
from profiler.loadgen.sync_client import SyncStreamClient
from synergai.client.client import Client
from synergai.errors import DeadlineExceeded, InternalError, Overloaded, SynergaiError, Unavailable
from synergai.models.postprocess import CLASSES
from synergai.runtime.settings import decode_config
from synergai.wire import arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import mlperf_loadgen

    from profiler.loadgen.library import SampleLibrary
    from profiler.loadgen.sync_client import Response
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
            os.write(options.report, MESSAGE_CODEC.encode(message))
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
    """Run the test and return its counts."""
    with ExitStack() as stack:
        sync_client = stack.enter_context(
            SyncStreamClient(settings.target, **settings.connection())
        )
        library = _library(settings, sync_client.engine(settings.engine))
        completer = SampleCompleter(library if settings.mode == "accuracy" else None)
        deadline_s = settings.qos_ms / 1e3 if settings.qos_ms and settings.enforce else None
        sync_system = SyncSystem(
            sync_client,
            settings.engine,
            library,
            deadline_s=deadline_s,
            completer=completer,
            counter=counter,
        )
        system: SyncSystem | AsyncSystem = sync_system
        if settings.scenario in ("Server", "Offline"):
            client = Client(
                settings.target, attempts=1, in_flight=sys.maxsize, **settings.connection()
            )
            async_system = AsyncSystem(
                client,
                settings.engine,
                library,
                deadline_s=deadline_s,
                window=_OFFLINE_WINDOW if settings.scenario == "Offline" else None,
                completer=completer,
                counter=counter,
            )
            system = stack.enter_context(async_system)

        def prepare() -> mlperf_loadgen.TestSettings:
            test_settings = scenario_settings(settings, sync_system.warm_up())
            counter.reset()
            return test_settings

        logs = log_settings(settings.output)
        test = threading.Thread(target=_run_test, args=(system, library, prepare, logs, counter))
        test.start()
        _watch(counter, test, settings.query_timeout, report)
    return _with_accuracy(counter.counts(library.origin), library, settings)


def _library(settings: LoadgenSettings, engine: Engine) -> SampleLibrary:
    """Return the samples to send."""
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
    system: SyncSystem | AsyncSystem,
    library: SampleLibrary,
    prepare: Callable[[], mlperf_loadgen.TestSettings],
    logs: mlperf_loadgen.LogSettings,
    counter: QueryCounter,
) -> None:
    """Warm up and run LoadGen's test."""
    try:
        run_test(
            system.issue,
            prepare(),
            logs,
            count=library.count,
            performance_count=library.performance_count,
            load=system.load,
            unload=system.unload,
        )
    except SynergaiError as error:  # the warm-up failed, or a sample cannot be read
        counter.fail(error)
    except BaseException as error:
        counter.fail(InternalError(f"the test failed: {error!r}"))
        raise  # the log of the process gets the traceback


WARM_UP_QUERIES: Final = 5


class SyncSystem:
    """Sends queries on LoadGen's thread and completes their samples as responses arrive.

    Args:
        engine: name of the engine, or ``NAME/N`` for a version of it.
        library: the samples; requests are serialised when loaded, so as not to be timed.
    """

    def __init__(
        self,
        client: SyncStreamClient,
        engine: str,
        library: SampleLibrary,
        *,
        deadline_s: float | None,
        completer: SampleCompleter,
        counter: QueryCounter,
    ) -> None:
        self._client = client
        self._engine = engine
        self._library = library
        self._parameters = {}
        if deadline_s is not None:
            self._parameters["timeout"] = max(1, round(deadline_s * 1e6))
        self._completer = completer
        self._counter = counter
        self._requests: dict[int, bytes] = {}

    def warm_up(self) -> float:
        """Send a few queries before the run and return the lowest latency in seconds."""
        self.load([0])
        fastest = math.inf
        for _ in range(WARM_UP_QUERIES):
            self._counter.record_issued(1)
            sent_at = time.monotonic()
            [(_, response)] = self._client.infer([self._requests[0]])
            self._counter.record_end(sent_at, None)
            # Loading the engine may take longer than an enforced QoS allows.
            if isinstance(response, SynergaiError) and not isinstance(
                response, DeadlineExceeded | Overloaded
            ):
                raise response
            fastest = min(fastest, time.monotonic() - sent_at)
        self.unload([0])
        return fastest

    def load(self, indices: Sequence[int]) -> None:
        """Load samples and serialise their requests, before LoadGen issues them."""
        self._library.load(indices)
        for index in indices:
            if index not in self._requests:
                engine, _, version = self._engine.partition("/")
                request = arrays.build_request(
                    engine,
                    self._library.inputs(index),
                    outputs=self._library.outputs,
                    version=version,
                    request_id=str(index),
                    parameters=self._parameters,
                )
                self._requests[index] = request.SerializeToString()

    def unload(self, indices: Sequence[int]) -> None:
        """Drop samples that LoadGen no longer issues."""
        for index in indices:
            self._requests.pop(index, None)
        self._library.unload(indices)

    def issue(self, samples: list[mlperf_loadgen.QuerySample]) -> None:
        """Send a query of LoadGen's and wait for its responses."""
        counter = self._counter
        counter.record_issued(len(samples))
        # A query may contain a sample twice; the responses are interchangeable.
        ids: defaultdict[str, list[int]] = defaultdict(list)
        for sample in samples:
            ids[str(sample.index)].append(sample.id)
        issued_at = time.monotonic()
        try:
            requests = [self._requests[sample.index] for sample in samples]
            for request_id, response in self._client.infer(requests):
                error = response if isinstance(response, SynergaiError) else None
                counter.record_end(issued_at, error)
                encoded = self._encode(int(request_id), response)
                self._completer.complete([(ids[request_id].pop(), encoded)])
        except SynergaiError as error:
            counter.fail(error)

    def _encode(self, index: int, response: Response) -> bytes:
        if isinstance(response, SynergaiError) or not self._completer.logs_responses:
            return EMPTY_RESPONSE
        return self._completer.encode(index, arrays.read_outputs(response))


if __name__ == "__main__":
    sys.exit(main())
