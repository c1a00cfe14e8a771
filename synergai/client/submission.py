"""Submission of a job over the client's own inputs: upload, then submit."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.client.input_sources import OtherInputs, open_source, read_messages, take_inventory
from synergai.client.upload_messages import InputEncoder
from synergai.client.uploads import Upload, UploadProgress
from synergai.data.inventory import InputInventory
from synergai.data.text_files import DEFAULT_TEXT
from synergai.errors import Conflict, EngineUnusable, IdempotencyConflict, InvalidInput
from synergai.v1 import jobs_pb2
from synergai.wire.converters import job_spec_to_proto

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from synergai.client.channel import GatewayChannel
    from synergai.client.input_sources import JobInputs
    from synergai.data.text_files import TextFormat
    from synergai.domain import Engine
    from synergai.jobs import JobSpec

_NAMESPACE: Final = uuid.UUID("5ca1ab1e-0da7-4a11-8e57-5eed0f1a7e57")
"""Of the ids of uploads that follow from idempotency keys."""
_MAX_LISTED: Final = 1000


def upload_id_for(idempotency_key: str) -> str:
    """Return the id of the upload for a key, so that submitting again continues the upload."""
    return str(uuid.uuid5(_NAMESPACE, idempotency_key))


async def submit_inputs(
    channel: GatewayChannel,
    engine: Engine,
    inputs: JobInputs,
    make_spec: Callable[[int, str], JobSpec],
    by: Timestamp | None,
    *,
    text: TextFormat | None,
    outputs: Sequence[str],
    idempotency_key: str,
    max_input_bytes: int,
    patience: float,
    on_progress: Callable[[UploadProgress], None],
) -> str:
    """Upload inputs, submit a job over them and return its id; see `Client.submit`.

    `make_spec` returns the job's specification for a number of inputs and an upload.
    """
    upload_id = upload_id_for(idempotency_key)
    make_spec(0, upload_id)  # raises for an invalid specification before anything is read
    list_files = partial(
        take_inventory, engine=engine, limit=max_input_bytes, text=text or DEFAULT_TEXT
    )
    source = await open_source(inputs, engine, list_files)
    # A key that follows from the files needs no second look at those that are stored.
    named_by_key = isinstance(source, InputInventory) and source.named_by_key
    try:
        encoder = InputEncoder(engine, outputs, max_input_bytes)
        read = partial(read_messages, source, encoder, compare=not named_by_key)
        upload = Upload(channel, upload_id, read, patience=patience, on_progress=on_progress)
        try:
            receipt = await upload.run()
        except (Conflict, EngineUnusable) as error:
            if error is upload.failure and not isinstance(error, OtherInputs):
                raise  # by the caller's iterable
            # A job uses the upload, and there are more inputs.
            raise IdempotencyConflict(idempotency_key, ["inputs or outputs"]) from error
    finally:
        if isinstance(source, InputInventory) and source is not inputs:
            source.close()
    if not receipt.stored:
        raise InvalidInput(f"there are no inputs for engine {engine.name!r}")
    request = jobs_pb2.SubmitRequest(
        spec=job_spec_to_proto(make_spec(receipt.stored, upload_id)),
        idempotency_key=idempotency_key,
        inputs_digest=receipt.digest if receipt.HasField("digest") else None,
        by=by,
    )
    try:
        return (await channel.call(channel.jobs.Submit, request)).id
    except Conflict:
        # The time of day may stand for another day than when the command was first run.
        if named_by_key and (job_id := await _find_job(channel, upload_id)):
            return job_id
        raise


async def _find_job(channel: GatewayChannel, upload_id: str) -> str:
    """Return the id of the job over an upload, if it is among the newest; empty otherwise."""
    request = jobs_pb2.ListRequest(limit=_MAX_LISTED)
    jobs = (await channel.call(channel.jobs.List, request)).jobs
    return next((job.id for job in jobs if job.spec.upload_id == upload_id), "")
