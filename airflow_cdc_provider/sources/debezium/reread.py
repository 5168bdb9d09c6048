"""Reading messages again that were set apart because the registry had no schema of their id.

Such a record has all that the message had: its place, its time, the value as it was written, and the key, as
it was written or, where that could be read, as JSON. So it becomes the record that it would have become, at
the same place in its partition's order: what came of later messages stays newer. One whose id is still
unknown stays as it is. So do all while the registry doesn't answer, or refuses us: what waits here holds up
no run.

The mirror needn't become what it would have been. A newer event that left values out (placeholders) was
merged with the row before both; the late row loses to it, and with it the values that it alone has.

Nothing waits for ever: while something does, no deletion is forgotten. So what is older than deletions are
remembered, and whose id the registry still doesn't have, is given up: it stays set apart.

A truncate never lands. Of what came after it the mirror may be all that is left, and it would be emptied of
that too. It stays set apart, for a reason by which nothing waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.record import QUARANTINE, SCHEMA
from airflow_cdc_provider.changes.spans import Ints
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.registry import RegisteredSchema
from airflow_cdc_provider.sources.debezium.converters import Converter, Values
from airflow_cdc_provider.sources.debezium.position import POSITION_BYTES, epoch_of, offsets_of, partition_of
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, read_parted, table_of
from airflow_cdc_provider.sources.debezium.records import Messages
from airflow_cdc_provider.sources.debezium.registered import Registered

log = logging.getLogger(__name__)

AWAITED: Final = "UNKNOWN-SCHEMA"
"""Code of the reason for which records wait to be read again."""
_GIVEN_UP: Final = (
    "SCHEMA-GIVEN-UP: this waited for longer than lake.tombstone_retention_seconds and is read no more"
)


@dataclass(frozen=True)
class AwaitingReader:
    """Reads records of kind ``quarantine`` again. Picklable: in each task it begins anew.

    Args:
        reader: Reads messages; its registry is asked once for each id, and no more when it has failed.
        partitions: How many partitions topics have.
        given_up_before_us: What was captured before is given up if its schema isn't known now, µs since 1970;
            0 for nothing.
    """

    reader: SliceReader
    partitions: Mapping[str, int]
    given_up_before_us: int = 0

    def __call__(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what they hold by the schemas that the registry has now; others as they are."""
        waits = pc.starts_with(records["reason"], f"{AWAITED}:").fill_null(False)
        others = records.filter(pc.invert(waits))
        if others.num_rows:
            yield others
        if others.num_rows == records.num_rows:
            return
        awaited = pa.Table.from_batches([records.filter(waits)])
        awaited = awaited.append_column("epoch", pc.binary_slice(awaited["position"], 0, 4))
        awaited = awaited.sort_by([("origin", "ascending"), ("position", "ascending")]).combine_chunks()
        of_epochs = awaited.group_by(["origin", "epoch"], use_threads=False).aggregate([([], "count_all")])
        seen: set[tuple[str, str]] = set()
        first = 0
        for count in of_epochs["count_all"].to_pylist():
            some = awaited.slice(first, count).to_batches()[0]
            first += count
            for made in self._read(some, seen):
                yield self._without_old(_moments_back(made, some))

    def _without_old(self, made: pa.RecordBatch) -> pa.RecordBatch:
        """Give up what has waited for too long; unless the registry failed, which says nothing of an id."""
        registry = self._asking.registry
        if isinstance(registry, _AsFarAsItAnswers) and registry.failed:
            return made
        old = pc.less(made["captured_at"].cast(pa.int64()), self.given_up_before_us)
        old = pc.and_(old, pc.equal(made["kind"], QUARANTINE))
        name = "reason"
        told = pc.replace_substring_regex(made[name], f"^{AWAITED}:", f"{_GIVEN_UP}:")
        reasons = pc.if_else(old, told, made[name])
        return made.set_column(made.schema.get_field_index(name), made.schema.field(name), reasons)

    @cached_property
    def _asking(self) -> SliceReader:
        """What reads all that this task is given."""
        reader = self.reader
        if reader.registry is not None:
            reader = replace(reader, registry=_AsFarAsItAnswers(reader.registry))
        return reader

    @cached_property
    def _converters(self) -> tuple[Converter, Converter]:
        """What reads keys and values: schemas are compiled once."""
        return self._asking.converters()

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what a task made: the next one asks anew."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def _read(self, records: pa.RecordBatch, seen: set[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
        """Read what waits of one epoch of a partition, in its order."""
        reader = self._asking
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
        keys, values = self._converters
        feed = replace(
            feed, strict=False, is_late=True, key_converter=_KeysLeft(keys), value_converter=values
        )
        times_ms = pc.divide(records["committed_at"].cast(pa.int64()), 1000).fill_null(-1)
        messages = Messages(records["key"], records["payload"], offsets, times_ms.to_numpy())
        yield from read_parted(messages, feed, seen, Counter())


def _moments_back(made: pa.RecordBatch, records: pa.RecordBatch) -> pa.RecordBatch:
    """Give records the moments when their messages were captured, which may be many."""
    positions = pc.binary_slice(made["position"], 0, POSITION_BYTES)
    rows = pc.index_in(positions, value_set=records["position"])
    captured = records["captured_at"].take(rows)
    # A schema that came with a message without a time is dated by when that was captured.
    undated = pc.and_(pc.equal(made["kind"], SCHEMA), records["committed_at"].take(rows).is_null())
    dated = pc.if_else(undated, pc.floor_temporal(captured, unit="millisecond"), made["committed_at"])
    for name, moments in (("captured_at", captured), ("committed_at", dated)):
        made = made.set_column(made.schema.get_field_index(name), made.schema.field(name), moments)
    return made


@dataclass(frozen=True)
class _KeysLeft:
    """Reads the keys that could not be read; those that were are JSON, which never begins with a zero.

    Args:
        converter: Reads them; what keys of text begin with says nothing to it.
    """

    converter: Converter

    def keys(self, written: pa.Array) -> tuple[pa.Array, Ints]:
        left = pc.equal(pc.binary_slice(written, 0, 1), pa.scalar(b"\0")).fill_null(False)
        made, faults = self.converter.keys(pc.if_else(left, written, pa.scalar(None, pa.binary())))
        return pc.if_else(left, made, written), faults

    def values(self, written: pa.Array, *, unwrapped: bool) -> Values:
        return self.converter.values(written, unwrapped=unwrapped)


class _AsFarAsItAnswers:
    """A registry that has no schema more as soon as it fails.

    Args:
        registry: The registry.

    Attributes:
        failed: Whether it did.
    """

    def __init__(self, registry: Registered) -> None:
        self._registry = registry
        self.failed = False

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema, None if there is none, or it can't be told."""
        if self.failed:
            return None
        try:
            return self._registry.schema_of(schema_id)
        except CdcError as error:
            log.warning("messages whose schemas were unknown wait on: %s", error)
            self.failed = True
            return None
