"""What an agent says of itself when it registers, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.fleet.power import WorkerPower
from gateway.fleet.worker import ConnectedWorker
from gateway.send_queue import Outbox
from synergai.domain import Configuration, WorkerClass, WorkerId, validate_name
from synergai.errors import InvalidInput, NotSupported
from synergai.protocol.converters import (
    configuration_from_proto,
    engine_from_proto,
    session_from_proto,
)
from synergai.protocol.hub import HUB_VERSION

if TYPE_CHECKING:
    from gateway.fleet.worker import Order
    from synergai.v1 import hub_pb2

_MAX_ENGINES: Final = 10_000
_MAX_CONFIGURATIONS: Final = 1024
_MAX_VERSION_TEXT: Final = 128
_MAX_METER_TEXT: Final = 256


def worker_of(message: hub_pb2.Register, now: float) -> ConnectedWorker:
    """The worker that an agent says it is; it has no work stream yet.

    Raises:
        NotSupported: it speaks another version of the protocol.
        InvalidInput: something in it is not valid, given twice, or too much.
    """
    if message.protocol_version != HUB_VERSION:
        raise NotSupported(
            f"this gateway speaks version {HUB_VERSION} of the hub protocol, and the agent "
            f"version {message.protocol_version}: bring both to the same release"
        )
    worker_id = WorkerId(validate_name(message.worker_id, "worker id"))
    where = f"worker {worker_id!r}"
    if max(len(message.engines), len(message.sessions)) > _MAX_ENGINES:
        raise InvalidInput(f"{where} has more than {_MAX_ENGINES:,} engines or sessions")
    if len(message.configurations) > _MAX_CONFIGURATIONS:
        raise InvalidInput(f"{where} has more than {_MAX_CONFIGURATIONS:,} configurations")
    if len(message.agent_version) > _MAX_VERSION_TEXT or not message.agent_version.isprintable():
        raise InvalidInput(f"{where} has no proper agent version")
    mode = validate_name(message.power_mode, "power mode") if message.power_mode else ""
    if len(message.meter) > _MAX_METER_TEXT or not message.meter.isprintable():
        raise InvalidInput(f"{where} has no proper name of its power meter")
    engines = {}
    for described in message.engines:
        engine = engine_from_proto(described)
        if engine.name in engines:
            raise InvalidInput(f"{where} has engine {engine.name!r} twice")
        engines[engine.name] = engine
    sessions = {session_from_proto(session) for session in message.sessions}
    for session in sessions:
        if session.engine not in engines:
            raise InvalidInput(f"{where} has a session of {session.engine!r}, but not the engine")
    configurations = tuple(dict.fromkeys(map(configuration_from_proto, message.configurations)))
    orders: Outbox[Order] = Outbox(0)
    orders.close()
    return ConnectedWorker(
        id=worker_id,
        worker_class=WorkerClass(validate_name(message.worker_class, "worker class")),
        agent_version=message.agent_version,
        cores=message.cores,
        memory_bytes=message.memory_bytes,
        configurations=configurations or (Configuration(),),
        orders=orders,
        heard_at=now,
        power=WorkerPower(mode=mode, meter=message.meter),
        engines=engines,
        sessions=sessions,
    )
