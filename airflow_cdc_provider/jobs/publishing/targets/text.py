"""Text as a target, in the events stage: captured changes as events in a file, one JSON object a line.

Use it to inspect captured changes and rows of snapshots in the form that ``publish`` declares: it applies the
same decoder and encoder as for recordings to committed records. It doesn't change the lake.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.events.event_batches import EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.resuming.progress import stored_offset
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.sources.encoding import headers_of
from airflow_cdc_provider.sources.registry import source_plugin


def events(run: Run) -> JobResult:
    """Write the events of batches, oldest first; within a batch in the order of each feed's log or stream.

    Options of the spec: ``path`` (the file, on the driver's machine), ``after_batch`` (batches up to this one
    are excluded; default 0), ``now_ns`` (the time at which events are built and TTLs are evaluated). With
    tables in the spec only theirs. A write that several nodes logged has an event from each of them.

    Returns:
        A result whose findings report skipped records with reasons.

    Raises:
        ConfigurationError: Nothing was captured.
        CorruptInput: A record can't be decoded and the source is strict.
        TransientError: Rows must be read again and the source doesn't respond; no file is written then.
    """
    job, stores, source, _, _ = run
    if not stores.changes.table.exists():
        raise ConfigurationError(
            f"the changes table {job.connector.changes_table} doesn't exist",
            remedy="run a capture or sync first",
        )
    after = int(job.spec.options.get("after_batch", 0))
    now_ns = int(job.spec.options.get("now_ns", time.time_ns()))
    skipped = SkippedRecords(strict=job.connector.source.strict)
    origin = Changes(job, stores, source, skipped)
    origin.survey(after)
    headers = headers_of(job.connector)
    target = Path(job.spec.options["path"])
    unfinished = target.with_name(target.name + ".part")
    with unfinished.open("wb") as file:
        for batch in origin.build(EventRequest(after, origin.through, now_ns)):
            file.write(text_of(to_lines(batch.records, headers)))
        own = source_plugin(job.connector.type).events()
        if own.heartbeats_have_offset:
            beats = own.heartbeat_records(job.connector, partial(stored_offset, stores.changes), now_ns)
            file.write(text_of(to_lines(beats, headers)))
    unfinished.replace(target)
    log.info("%s: events of batches %d to %d", job.connector.name, after + 1, origin.through)
    return JobResult(ok=True, findings=tuple(skipped.report()))
