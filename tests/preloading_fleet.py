"""A core with workers that load sessions as they are told, in a time of their own."""

from functools import partial

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.rules.residency import PLANNED_EVERY_S
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Configuration, EngineName, Outcome, Session, Variant, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_entry, new_job, new_request, new_worker

FAMILY = EngineName("fashion")

PLAIN = [EngineName(f"engine-{number}") for number in range(4)]

CLASS = WorkerClass("server")

VARIANTS = {"large": (0.05, 0.90), "medium": (0.02, 0.88), "small": (0.005, 0.80)}

GIB = 1 << 30


class Fleet:
    """A core with workers on which nothing is loaded, and what it commanded."""

    def __init__(
        self,
        workers: int,
        *,
        preload: bool = False,
        memory_bytes: int = 0,
        log: EventLog | None = None,
    ) -> None:
        self.settings = SchedulingSettings(preload=preload)
        self.entries = [
            new_entry(
                FAMILY,
                CLASS,
                1.0 / seconds,
                Configuration(variant=name),
                accuracy=accuracy,
                accuracy_samples=10_000,
                backend_start_s=0.3,
                model_load_s=0.01,
            )
            for name, (seconds, accuracy) in VARIANTS.items()
        ]
        self.entries += [
            new_entry(engine, CLASS, 10.0, Configuration(), model_load_s=10.0 + number)
            for number, engine in enumerate(PLAIN)
        ]
        self.core = SchedulerCore(self.settings, ConfigurationDictionary(self.entries))
        self.log = log
        self.now = 0.0
        self.running: list[events.Dispatch] = []
        self.loading: list[events.Load] = []
        self.dropping: list[events.Unload] = []
        self._jobs = 0
        for number in range(workers):
            self.handle(events.WorkerJoined(self.worker(number, memory_bytes)))

    @staticmethod
    def worker(number: int, memory_bytes: int = 0) -> events.Worker:
        return new_worker(
            f"worker-{number}",
            CLASS,
            [FAMILY, *PLAIN],
            (Configuration(),),
            loaded=(),
            variants={FAMILY: tuple(Variant(name=name) for name in VARIANTS)},
            memory_bytes=memory_bytes,
            session_bytes=dict.fromkeys(PLAIN, GIB),
        )

    def handle(self, event: events.Event) -> list[events.Command]:
        commands = self.core.handle(event, self.now)
        if self.log is not None:
            self.log.record(event, self.now, commands)
        for command in commands:
            match command:
                case events.Dispatch():
                    self.running.append(command)
                case events.Load():
                    self.loading.append(command)
                case events.Unload():
                    self.dropping.append(command)
        return commands

    def submit(
        self, engine: EngineName, qos: float = 1e6, queries: int = 1, variant: str = ""
    ) -> None:
        self._jobs += 1
        new = new_request if queries == 1 else partial(new_job, queries=queries)
        deadline = self.now + qos
        arrived = new(str(self._jobs), engine, now=self.now, deadline=deadline, variant=variant)
        self.handle(arrived)

    def end_first(self) -> None:
        """Let an assignment load what it needs, and end: one that loads, or else the oldest."""
        self.running.sort(key=lambda dispatch: dispatch.assignment.setup_s == 0.0)
        assignment = self.running.pop(0).assignment
        session = Session(assignment.engine, assignment.configuration)
        if assignment.setup_s > 0.0:
            self.now += assignment.setup_s
            self.handle(events.SessionLoaded(assignment.worker_id, session, assignment.setup_s))
        seconds = assignment.count * assignment.query_s
        self.now += seconds
        ended = events.AssignmentEnded(
            assignment.id, assignment.count, Outcome.COMPLETED, compute_s=seconds
        )
        self.handle(ended)

    def loaded(self) -> events.Load:
        """Complete the oldest preload, and return it."""
        load = self.loading.pop(0)
        self.now += 0.3
        self.handle(events.SessionLoaded(load.worker_id, load.session, 0.3))
        return load

    def load_plain(self) -> events.Load:
        """Return a preload, which has just begun, of an engine without variants."""
        while not self.loading or self.loading[0].session.engine not in PLAIN:
            if self.loading:
                self.loaded()
            else:
                self.now += PLANNED_EVERY_S
                self.handle(events.TimePassed())
        return self.loading[0]

    def settle(self, limit: int = 100) -> list[events.Load]:
        loads = []
        for _ in range(limit):
            if self.running:
                self.end_first()
            elif self.dropping:
                dropped = self.dropping.pop(0)
                self.handle(events.SessionDropped(dropped.worker_id, dropped.session))
            elif self.loading:
                loads.append(self.loaded())
            else:
                self.now += 0.2
                self.handle(events.TimePassed())
                if not self.loading:
                    break
        return loads
