"""Retries messages that were quarantined because the registry had no schema with their id.

Such a record contains the complete message: its position, its time, the original value, and the key, either
in its original form or, if it could be read, as JSON. A retry therefore produces the record that the message
would have produced, at the same position in its partition: records of later messages stay newer. A record
whose id is still unknown is unchanged. So are all records while the registry doesn't answer or rejects
requests: they never block a run.

The mirror may differ from one without the delay. A newer event with unavailable values (placeholders) was
merged with the row before both; the late row loses to it, so values that only the late row has are lost.

No record is retried forever, because deletes are retained as long as there is one to retry. A record that is
older than the retention of deletes, and whose id the registry still doesn't have, is given up: it stays
quarantined. Of too many ids, each retry looks up some, in any order; what wasn't looked up isn't given up.

A truncate is never applied late: later rows may only be in the mirror by now, and would be deleted too. It
stays quarantined, for a reason that isn't retried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.record import QUARANTINE, SCHEMA
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.registry import RegisteredSchema, UnreadableSchema
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.debezium.converters import (
    FAULTS,
    NOT_LOOKED_UP,
    Converter,
    FramedConverter,
    Values,
)
from airflow_cdc_provider.sources.debezium.position import POSITION_BYTES, epoch_of, offsets_of, partition_of
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, read_parted, table_of
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import Messages
from airflow_cdc_provider.sources.debezium.registered import Registered

log = logger(__name__)

UNKNOWN_SCHEMA: Final = "UNKNOWN-SCHEMA"
"""Code of the reason for which records are retried."""
_GIVEN_UP: Final = (
    "SCHEMA-GIVEN-UP: no schema was found within lake.tombstone_retention_seconds; no further retries"
)


@dataclass(frozen=True)
class UnknownSchemaReader:
    """Retries records of kind ``quarantine``. Picklable: each task starts with fresh state.

    Args:
        reader: Reads messages; its registry is queried once per id, for a bounded number of ids of each
            topic, and not at all after a failure.
        partitions: Number of partitions by topic.
        given_up_before_us: Records captured before this are given up if their schema is still unknown, µs
            since 1970; 0 for none.
    """

    reader: SliceReader
    partitions: Mapping[str, int]
    given_up_before_us: int = 0

    def __call__(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the decoded records if the registry has their schemas now; other records unchanged."""
        is_retried = pc.starts_with(records["reason"], f"{UNKNOWN_SCHEMA}:").fill_null(False)
        others = records.filter(pc.invert(is_retried))
        if others.num_rows:
            yield others
        if others.num_rows == records.num_rows:
            return
        retried = pa.Table.from_batches([records.filter(is_retried)])
        retried = retried.append_column("epoch", pc.binary_slice(retried["position"], 0, 4))
        retried = retried.sort_by([("origin", "ascending"), ("position", "ascending")]).combine_chunks()
        of_epochs = retried.group_by(["origin", "epoch"], use_threads=False).aggregate([([], "count_all")])
        first = 0
        for count in of_epochs["count_all"].to_pylist():
            of_epoch = retried.slice(first, count).to_batches()[0]
            first += count
            for decoded in self._read(of_epoch, self._seen):
                yield self._give_up_old(_with_capture_times(decoded, of_epoch))

    def _give_up_old(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Give up records that are too old, unless the registry failed or was not asked for them."""
        registry = self._task_reader.registry
        if isinstance(registry, _RegistryUntilFailure) and registry.failed:
            return decoded
        old = pc.less(decoded["captured_at"].cast(pa.int64()), self.given_up_before_us)
        old = pc.and_(old, pc.equal(decoded["kind"], QUARANTINE))
        name = "reason"
        old = pc.and_not(old, pc.starts_with(decoded[name], FAULTS[NOT_LOOKED_UP]).fill_null(False))
        given_up = pc.replace_substring_regex(decoded[name], f"^{UNKNOWN_SCHEMA}:", f"{_GIVEN_UP}:")
        reasons = pc.if_else(old, given_up, decoded[name])
        return decoded.set_column(decoded.schema.get_field_index(name), decoded.schema.field(name), reasons)

    @cached_property
    def _seen(self) -> RecordedSchemas:
        """What is recorded, and what this task adds."""
        return RecordedSchemas(self.reader.known)

    @cached_property
    def _task_reader(self) -> SliceReader:
        """The reader for all records of this task."""
        reader = self.reader
        if reader.registry is not None:
            reader = replace(reader, registry=_RegistryUntilFailure(reader.registry))
        return reader

    @cached_property
    def _converters(self) -> Callable[[str], tuple[Converter, Converter]]:
        """Return the converters of a topic's keys and values, which compile schemas once.

        Each topic has its own, because the lookups of each are bounded.
        """

        @cache
        def converters(topic: str) -> tuple[Converter, Converter]:
            keys, values = self._task_reader.converters(topic)
            return _in_any_order(keys), _in_any_order(values)

        return converters

    def __getstate__(self) -> dict[str, Any]:
        """Omit the state of a task: the next one queries the registry again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def _read(self, records: pa.RecordBatch, seen: RecordedSchemas) -> Iterator[pa.RecordBatch]:
        """Retry the records of one epoch of a partition, in order."""
        reader = self._task_reader
        topic, partition = partition_of(records["origin"][0].as_py())
        offsets = offsets_of(records["position"])
        table = table_of(topic) if reader.options.tables_from == "topic" else ""
        part = TopicSlice(
            MessageRange(topic, partition, int(offsets[0]), int(offsets[-1]) + 1),
            epoch_of(records["position"][0].as_py()),
            self.partitions.get(topic, 0),
            table,
            captured_us=0,
        )
        feed = reader.feed(part)
        keys, values = self._converters(topic)
        feed = replace(
            feed, strict=False, is_late=True, key_converter=_UnreadKeys(keys), value_converter=values
        )
        times_ms = pc.divide(records["committed_at"].cast(pa.int64()), 1000).fill_null(-1)
        too_large = np.zeros(len(offsets), np.bool_)
        messages = Messages(records["key"], records["payload"], offsets, times_ms.to_numpy(), too_large)
        yield from read_parted(messages, feed, seen, Counter())


def _with_capture_times(decoded: pa.RecordBatch, records: pa.RecordBatch) -> pa.RecordBatch:
    """Restore the capture times of the original messages."""
    positions = pc.binary_slice(decoded["position"], 0, POSITION_BYTES)
    rows = pc.index_in(positions, value_set=records["position"])
    captured = records["captured_at"].take(rows)
    # A schema of a message without a timestamp gets the capture time of the message.
    undated = pc.and_(pc.equal(decoded["kind"], SCHEMA), records["committed_at"].take(rows).is_null())
    dated = pc.if_else(undated, pc.floor_temporal(captured, unit="millisecond"), decoded["committed_at"])
    for name, times in (("captured_at", captured), ("committed_at", dated)):
        decoded = decoded.set_column(decoded.schema.get_field_index(name), decoded.schema.field(name), times)
    return decoded


def _in_any_order(converter: Converter) -> Converter:
    return replace(converter, in_any_order=True) if isinstance(converter, FramedConverter) else converter


@dataclass(frozen=True)
class _UnreadKeys:
    """Reads keys that were unreadable before; other keys are JSON, which never starts with a zero byte.

    Args:
        converter: The key converter; for text keys the first byte is irrelevant.
    """

    converter: Converter

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        unread = pc.equal(pc.binary_slice(written, 0, 1), pa.scalar(b"\0")).fill_null(False)
        decoded, faults = self.converter.keys(pc.if_else(unread, written, pa.scalar(None, pa.binary())))
        return pc.if_else(unread, decoded, written), faults

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        return self.converter.values(written, unwrapped=unwrapped)


class _RegistryUntilFailure:
    """A registry that returns no schemas after its first failure.

    Args:
        registry: The registry.

    Attributes:
        failed: Whether it has failed.
    """

    def __init__(self, registry: Registered) -> None:
        self._registry = registry
        self.failed = False

    def schema_of(self, schema_id: int) -> RegisteredSchema | UnreadableSchema | None:
        """Return a schema, None if there is none, or after a failure."""
        if self.failed:
            return None
        try:
            return self._registry.schema_of(schema_id)
        except CdcError as error:
            log.warning("messages with unknown schemas are not retried: %s", error)
            self.failed = True
            return None
