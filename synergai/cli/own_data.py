"""A job over files from the command line: list, upload, submit, wait, and write the results.

Running the same command again continues where it was interrupted, in any of these steps.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from synergai.cli.jobs import print_accepted, print_status, raise_unless_good, watch_progress
from synergai.cli.output import count_progress, print_json, to_jsonable
from synergai.cli.result_files import FailureList, fetch_results, has_all
from synergai.data.inventory import InputInventory
from synergai.data.result_directory import DirectoryMarker, ResultDirectory
from synergai.jobs import JobState
from synergai.runtime.tasks import TaskBag
from synergai.runtime.text import counted
from synergai.wire.validation import check_output_names

if TYPE_CHECKING:
    from rich.progress import Progress

    from synergai.cli.options import JobTerms, OwnInputs
    from synergai.client.client import Client
    from synergai.client.jobs import JobHandle
    from synergai.client.uploads import UploadProgress
    from synergai.domain import Engine
    from synergai.jobs import JobStatus

_REPORT_EVERY: Final = 1000
"""Files listed between updates of the progress."""
_UPLOADING: Final = "while uploading"
"""Where inputs failed that were not sent to a worker."""


@dataclass
class OwnDataJob:
    """One run of the command; see the options of `synergai submit`."""

    client: Client
    engine: str
    patterns: tuple[str, ...]
    own: OwnInputs
    terms: JobTerms
    unusable: FailureList = field(default_factory=FailureList)
    failed: FailureList = field(default_factory=FailureList)

    async def run(self, *, detach: bool, as_json: bool) -> None:
        description = await self.client.engine(self.engine)
        check_output_names(self.own.only or (), description)
        output = self.own.output
        with ExitStack() as stack:
            directory = stack.enter_context(ResultDirectory(output)) if output else None
            with count_progress() as progress:
                inventory = stack.enter_context(await self._list(description, progress))
                digest = self._digest(inventory)
                if directory is not None:
                    directory.check(DirectoryMarker("", self.engine, digest))
                key = self.terms.key or _upload_key(digest, description)
                inventory.named_by_key = not self.terms.key
                job = await self._submit(inventory, key, directory, progress)
                if directory is not None:
                    directory.claim(DirectoryMarker(job.id, self.engine, digest))
            if detach:
                await self._print_accepted(job, as_json=as_json)
                return
            if not as_json:
                typer.echo(job.id)
            status = await self._wait(job, directory)
            self._print_end(status, directory, as_json=as_json)
            raise_unless_good(status)

    async def _list(self, engine: Engine, progress: Progress) -> InputInventory:
        task = progress.add_task("listing inputs", total=None)
        inventory = InputInventory(self.patterns, engine, limit=self.client.max_input_bytes)
        try:
            files = inventory.scan()
            while await asyncio.to_thread(_advance, files):
                progress.update(task, completed=inventory.files)
        except BaseException:
            progress.remove_task(task)
            inventory.close()
            raise
        progress.remove_task(task)
        if inventory.skipped:
            progress.console.print(
                f"{counted(inventory.skipped, 'file')} skipped because of the suffix", markup=False
            )
        return inventory

    def _digest(self, inventory: InputInventory) -> str:
        """Return what identifies the command: the same one over the same files has the same.

        The version that the gateway chooses is left out: it may have changed since the command was
        interrupted, and the job keeps the one that it got.
        """
        own, terms = self.own, self.terms
        return _digest_of(
            self.engine,
            terms.options(),
            inventory.digest,
            own.only or (),
            own.max_failures,
            terms.key,
        )

    async def _submit(
        self,
        inventory: InputInventory,
        key: str,
        directory: ResultDirectory | None,
        progress: Progress,
    ) -> JobHandle:
        """Upload the inputs and submit the job, unless the directory has one already."""
        marker = directory.marker if directory is not None else None
        if marker is not None and marker.job_id:
            return self.client.job(marker.job_id)
        task = progress.add_task(f"uploading to {self.engine}", total=inventory.inputs)

        def report(upload: UploadProgress) -> None:
            for each in upload.new:
                self.unusable.add(each.index, each.name, each.reason)
            text = f"uploading {upload.size / 1e6:,.0f} MB"
            if upload.unusable:
                text += f", {upload.unusable:,} unusable"
            progress.update(task, description=text, completed=upload.stored)

        job = await self.client.submit(
            self.engine,
            inputs=inventory,
            idempotency_key=key,
            outputs=self.own.only or (),
            max_failures=self.own.max_failures,
            on_progress=report,
            **self.terms.options(),
        )
        progress.remove_task(task)
        return job

    async def _print_accepted(self, job: JobHandle, *, as_json: bool) -> None:
        status = await print_accepted(job, as_json=as_json, results=self.own.output or "DIR")
        self.unusable.print(where=_UPLOADING)
        if status.state is JobState.REJECTED:
            self._print_key_hint()
            status.raise_unless_succeeded()

    async def _wait(self, job: JobHandle, directory: ResultDirectory | None) -> JobStatus:
        """Wait for the job to end, and write its results; return its final status."""
        if directory is None:
            return await watch_progress(job)
        if directory.total and has_all(directory, status := await job.status()):
            return status
        async with TaskBag() as tasks:
            # The error of a shard that cannot be written ends the watch as well.
            status, _ = await asyncio.gather(
                tasks.start_awaited(watch_progress(job)),
                tasks.start_awaited(
                    fetch_results(job, directory, follow=True, failures=self.failed)
                ),
            )
            return status

    def _print_end(
        self, status: JobStatus, directory: ResultDirectory | None, *, as_json: bool
    ) -> None:
        listed = self._failures(status, directory)
        if as_json:
            facts = to_jsonable(status)
            if directory is not None:
                facts |= {"directory": str(directory.path), "results": directory.total}
            print_json(facts | {"failed_inputs": listed.as_json()})
        else:
            self._print_text(status, directory, listed)
        if status.state is not JobState.SUCCEEDED:
            self._print_key_hint()

    def _failures(self, status: JobStatus, directory: ResultDirectory | None) -> FailureList:
        """Return the failed inputs that are known here."""
        if directory is None:
            return self.unusable
        # An earlier run of the command may have fetched the results of some.
        return self.failed if self.failed.count == status.failures else FailureList.of(directory)

    def _print_text(
        self, status: JobStatus, directory: ResultDirectory | None, listed: FailureList
    ) -> None:
        print_status(status, as_json=False)
        failed = f" ({status.failures:,} failed)" if status.failures else ""
        if directory is not None:
            typer.echo(f"{counted(directory.total, 'result')} in {directory.path}{failed}")
        elif status.queries_done:
            command = f"synergai jobs results {status.id} --output DIR"
            typer.echo(f"fetch the results{failed} with '{command}'")
        # Without a directory, those that failed at a worker are known from the results only.
        is_partial = directory is None and status.failures > listed.count
        listed.print(where=_UPLOADING if is_partial else "")

    def _print_key_hint(self) -> None:
        options = "--key and --output" if self.own.output else "--key"
        typer.echo(
            f"the same command finds this job again; to run a new one, give another {options}",
            err=True,
        )


def _upload_key(command: str, engine: Engine) -> str:
    """Return the idempotency key of a command.

    It depends on the inputs that the engine takes: an upload that was begun for a version with
    other inputs must not be continued for this one.
    """
    inputs = [(spec.name, spec.datatype, spec.shape) for spec in engine.inputs]
    return _digest_of(command, inputs, engine.preprocess)


def _digest_of(*facts: Any) -> str:
    return sha256(msgspec.json.encode(facts)).hexdigest()


def _advance(files: Any) -> bool:
    """List some more files; return whether there may be others."""
    return any(number == _REPORT_EVERY for number, _ in enumerate(files, 1))
