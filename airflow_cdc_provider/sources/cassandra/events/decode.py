"""Changes of one table as the columns of Debezium's events.

The operations of an update's parts::

    row with liveness (INSERT)                    i
    row without (UPDATE, single-column DELETE)    u
    row deletion                                  d, plus i or u if the update has later cells of the row
    static row                                    u, clustering columns null
    range deletion                                r, with both ends
    partition deletion                            d, clustering columns null
    row of a snapshot                             i, with all columns
    static row of a snapshot                      u, clustering columns null, with all static columns

The re-read of an unresolved key (:mod:`airflow_cdc_provider.lake.unresolved`) is a snapshot record too, but
not an event: it repeats changes from the log.

A column's cell is null if the update doesn't contain it, else it has its value, ``deletion_ts`` (us: when it
expires or was deleted) and ``set``.

Debezium's connector has faults that this one avoids: it stops at or omits tables with UDTs or vectors,
boundaries between ranges, and sets in lists; it emits no event for static rows; a row or partition deletion
suppresses the other rows of its update; removing elements of a set looks like adding them (here
``deletion_ts`` is set, and an event with added elements doesn't list removed ones); the TTL of a collection
is lost (here ``deletion_ts`` has it if all elements share it).

As in Debezium's events, a row deletion lists static columns too, though it doesn't delete them; an update of
single elements of a list can't be distinguished from one of the whole list, and their removal is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION, ROW, STATIC
from airflow_cdc_provider.changes.record import DATA_KINDS
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_parts, column_of
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints
from airflow_cdc_provider.patterns import matches
from airflow_cdc_provider.sources.cassandra.decoding.decode import _decode_all, _reason
from airflow_cdc_provider.sources.cassandra.events.facts import Facts, collect_facts
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes, empty_of, java_type
from airflow_cdc_provider.sources.cassandra.payload import segments_and_ends
from airflow_cdc_provider.sources.converters import Converter
from airflow_cdc_provider.sources.cql.decoding.programs import Program, compile_tables
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUND_HEADER_BYTES,
    CHANGE,
    LOWER,
    ROWS_AT,
    SCOPE,
    STATE_END,
    UPPER,
    Sink,
)
from airflow_cdc_provider.sources.cql.json_text import value_to_json
from airflow_cdc_provider.sources.cql.projection import Projection
from airflow_cdc_provider.sources.cql.schema import Column, TableSchema, order_as_driver
from airflow_cdc_provider.sources.cql.snapshot_payload import SNAPSHOT_TAG, snapshot_columns

BOUND_TYPE: Final = pa.struct(
    [
        pa.field("method", pa.utf8()),
        pa.field("values", pa.list_(pa.struct([(n, pa.utf8()) for n in ("name", "value", "type")]))),
    ]
)
"""A bound of a range deletion: its kind, such as ``INCL_START_BOUND``, and values of clustering columns."""

_INSERT, _UPDATE, _DELETE, _RANGE = range(4)
_OPERATIONS: Final = pa.array(["i", "u", "d", "r"], pa.utf8())


@dataclass(frozen=True)
class CassandraEvents:
    """Events of changes.

    Args:
        events: In the order of the changes. Columns: ``row`` (of the input), ``ordinal`` (of the contribution
            among those of its change), ``op``, ``snapshot``, ``file`` and ``pos`` of the entry (empty and -1
            for a snapshot's row), ``ts_us`` (greatest write time of the update), ``key`` (struct of the key
            columns), ``after`` (struct of cells: key columns, regular and static columns), ``range_start``,
            ``range_end``. Fields carry the names of their Connect schemas as metadata.
        undecodable: Input rows that can't be decoded.
        reasons: The reason for each of them.
    """

    events: pa.RecordBatch
    undecodable: Sequence[int] = ()
    reasons: Sequence[str] = ()


class EventDecoder:
    """Decodes changes of one table to events, with its schema compiled: create one for many batches.

    Args:
        schema: The table; its static and regular columns have their ids.
        types: Types of values in events.
        converters: Patterns of columns (``keyspace.table.column``) and their converters; the first match
            applies.
    """

    def __init__(
        self,
        schema: TableSchema,
        types: EventTypes | None = None,
        converters: Sequence[tuple[str, Converter]] = (),
    ) -> None:
        self.schema = schema
        self._types = types or EventTypes()
        self._converters: dict[str, Converter] = {}
        for column in schema.columns:
            for pattern, converter in converters:
                if matches(pattern, f"{schema.full_name}.{column.name}"):
                    self._converters.setdefault(column.name, converter)
        self._program: Program = compile_tables([schema])
        self._event_schema = self._types.event_schema(schema)
        self._projection = Projection(self._event_schema, self._types.lake)
        self._cells = order_as_driver((*self._event_schema.regular, *self._event_schema.static))
        self._slots = np.full(max((c.id for c in self._cells), default=0) + 1, -1, np.int64)
        for slot, column in enumerate(self._cells):
            self._slots[column.id] = slot

    def _field(self, name: str, column: Column) -> pa.Field:
        """Return the event field of a column."""
        field = self._types.field(name, column.type)
        converter = self._converters.get(column.name)
        return converter.field(field) if converter else field

    def decode(self, changes: pa.RecordBatch) -> CassandraEvents:
        """Decode changes of the table; kinds other than ``change`` and ``snapshot`` have no event.

        Args:
            changes: Batch of ``CHANGE_SCHEMA``.

        Returns:
            The events, and the changes that can't be decoded.
        """
        has_data = pc.is_in(changes["kind"], value_set=pa.array(DATA_KINDS))
        chosen = np.flatnonzero(has_data.to_numpy(zero_copy_only=False))
        if len(chosen) == len(changes):
            return self._decode(changes)
        found = self._decode(changes.take(pa.array(chosen)))
        rows = pa.array(chosen).take(found.events["row"])
        return replace(
            found,
            events=found.events.set_column(0, "row", rows),
            undecodable=tuple(int(chosen[row]) for row in found.undecodable),
        )

    def _decode(self, changes: pa.RecordBatch) -> CassandraEvents:
        """Decode changes; bisects to find and skip a change with values that don't match their types."""
        data, offsets, _ = binary_parts(changes.column("payload"))
        sink, failures = _decode_all(data, offsets, self._program)
        rows = sink.rows[: sink.cursor[ROWS_AT]]
        facts = collect_facts(sink, rows, self._slots, self._cells)
        try:
            events = self._batch(changes, data, offsets, sink, rows, facts)
        except (CorruptInput, ConfigurationError) as error:
            count = len(changes)
            if count == 1:
                return CassandraEvents(self._decode(changes.slice(0, 0)).events, (0,), (error.message,))
            first, second = (
                self._decode(changes.slice(0, count // 2)),
                self._decode(changes.slice(count // 2)),
            )
            later = second.events.set_column(0, "row", pc.add(second.events["row"], count // 2))
            return CassandraEvents(
                pa.concat_batches([first.events, later]),
                (*first.undecodable, *(row + count // 2 for row in second.undecodable)),
                (*first.reasons, *second.reasons),
            )
        failed = np.flatnonzero(failures[:, 0])
        reasons = [
            _reason(data[offsets[i] : offsets[i + 1]], int(failures[i, 0]), int(failures[i, 1]))
            for i in failed
        ]
        return CassandraEvents(events, tuple(failed.tolist()), tuple(reasons))

    def _batch(
        self, changes: pa.RecordBatch, data: Bytes, offsets: Ints, sink: Sink, rows: Ints, facts: Facts
    ) -> pa.RecordBatch:
        change, scope = rows[:, CHANGE], rows[:, SCOPE]
        values = self._values(changes, sink, rows, facts)
        removes = (scope == PARTITION_DELETION) | ((scope == ROW) & facts.deleted)
        upserts = (scope == STATIC) | ((scope == ROW) & (~facts.deleted | facts.survives))
        is_range = scope == RANGE_DELETION
        snapshot = data[offsets[:-1]] == SNAPSHOT_TAG
        rereads = snapshot[change] & ~facts.selected
        removes, upserts, is_range = removes & ~rereads, upserts & ~rereads, is_range & ~rereads
        order = np.repeat(np.arange(len(rows)), removes.astype(int) + upserts + is_range)
        second = np.concatenate([[False], order[1:] == order[:-1]])
        of_change = change[order]
        event = _Event(removes[order] & ~second, scope[order], facts.take(order))
        listed = self._listed(changes, np.unique(change[facts.selected]))[of_change]
        present = (event.facts.live > 0) | (event.facts.dead > 0) | event.facts.emptied | listed
        op = np.where(event.facts.inserted & (event.scope == ROW), _INSERT, _UPDATE)
        op[event.removes] = _DELETE
        op[event.scope == RANGE_DELETION] = _RANGE
        latest = np.full(len(changes), np.iinfo(np.int64).min)
        np.maximum.at(latest, change, facts.latest)
        keys = (*self._event_schema.partition_key, *self._event_schema.clustering)
        key_fields = [self._field(c.name, c) for c in keys]
        key_values = [_take(values[c.name], order) for c in keys]
        after = [self._key_cell(c, v, event) for c, v in zip(keys, key_values, strict=True)]
        after += [
            self._cell(c, slot, _take(values[c.name], order), event, present[:, slot])
            for slot, c in enumerate(self._cells)
        ]
        names = [c.name for c in (*keys, *self._cells)]
        after_fields = [pa.field(n, a.type) for n, a in zip(names, after, strict=True)]
        files, ends = _log_positions(changes, data, offsets)
        starts, stops = self._bounds(sink, rows, order, is_range)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(of_change),
                pa.array(_ordinals(change)[order]),
                _OPERATIONS.take(pa.array(op)),
                pa.array(snapshot[of_change]),
                _take(files, of_change),
                pa.array(ends[of_change]),
                pa.array(latest[of_change]),
                pa.StructArray.from_arrays(key_values, fields=key_fields),
                pa.StructArray.from_arrays(after, fields=after_fields),
                starts,
                stops,
            ],
            [
                "row",
                "ordinal",
                "op",
                "snapshot",
                "file",
                "pos",
                "ts_us",
                "key",
                "after",
                "range_start",
                "range_end",
            ],
        )

    def _is_collection(self, column: Column) -> bool:
        """Return whether a column without elements is empty in events, not null."""
        kind = column.type
        return kind.multi_cell and kind.name in ("list", "set", "map") and column.name not in self._converters

    def _values(self, changes: pa.RecordBatch, sink: Sink, rows: Ints, facts: Facts) -> dict[str, pa.Array]:
        """Project every row of every update; missing cells are null."""
        ends = np.concatenate(([0], rows[:, STATE_END]))
        keys = changes.column("key").take(pa.array(rows[:, CHANGE]))

        def project(states: Bytes) -> pa.RecordBatch:
            live = {
                "key": keys,
                "state": column_of(pa.binary(), states, ends, rows[:, SCOPE] == ROW),
                "static_state": column_of(pa.binary(), states, ends, rows[:, SCOPE] == STATIC),
            }
            return self._projection.project(pa.RecordBatch.from_pydict(live))

        whole = project(facts.states)
        arrays = {c.name: self._types.array(whole.column(c.name), c.type) for c in self._event_schema.columns}
        dead_keys = [
            column
            for slot, column in enumerate(self._cells)
            if column.type.multi_cell and column.type.name == "map" and facts.dead[:, slot].any()
        ]
        if dead_keys:
            live = project(sink.states)
            for column in dead_keys:
                present = self._types.array(live.column(column.name), column.type)
                arrays[column.name] = _without_values(arrays[column.name], present)
        for name, converter in self._converters.items():
            arrays[name] = converter.array(arrays[name])
        return arrays

    def _listed(self, changes: pa.RecordBatch, selected: Ints) -> Flags:
        """Return which columns each snapshot row selected, including those without a value."""
        listed = np.zeros((len(changes), max(len(self._cells), 1)), np.bool_)
        slots = {column.name: slot for slot, column in enumerate(self._cells)}
        numbers, names = snapshot_columns(changes.column("payload").take(pa.array(selected)))
        of_names = np.zeros((len(names), listed.shape[1]), np.bool_)
        for number, columns in enumerate(names):
            of_names[number, [slots[name] for name in columns if name in slots]] = True
        listed[selected] = of_names[numbers]
        return listed

    def _key_cell(self, column: Column, values: pa.Array, event: _Event) -> pa.Array:
        clustering = column.kind == "clustering"
        deleted = event.removes & (event.scope == PARTITION_DELETION) & clustering
        missing = clustering & np.isin(event.scope, (STATIC, RANGE_DELETION))
        times = _times(event.facts.deleted_at, deleted)
        return cell_struct(self._field("value", column), values, times, ~missing)

    def _cell(self, column: Column, slot: int, values: pa.Array, event: _Event, present: Flags) -> pa.Array:
        facts, removes = event.facts, event.removes
        field = self._field("value", column)
        if self._is_collection(column):
            empty = present & ~removes & values.is_null().to_numpy(zero_copy_only=False)
            if empty.any():
                values = pc.if_else(pa.array(empty), empty_of(field), values)
        known = expires = facts.expires[:, slot]
        times = facts.expiry[:, slot] * 1_000_000
        if column.type.name == "set" and column.type.multi_cell:
            removed = (facts.dead[:, slot] > 0) & (facts.live[:, slot] == 0) & ~expires
            times = np.where(removed, facts.dead_at[:, slot], times)
            known = expires | removed
        if removes.any():
            values = pc.if_else(pa.array(removes), pa.scalar(None, field.type), values)
            times = np.where(removes, facts.deleted_at, times)
            known, present = known | removes, present | removes
        return cell_struct(field, values, _times(times, known), present)

    def _bounds(self, sink: Sink, rows: Ints, order: Ints, is_range: Flags) -> tuple[pa.Array, pa.Array]:
        ranges = np.flatnonzero(is_range[order])
        if not len(ranges):
            return pa.nulls(len(order), BOUND_TYPE), pa.nulls(len(order), BOUND_TYPE)
        starts: list[dict[str, Any] | None] = [None] * len(order)
        stops: list[dict[str, Any] | None] = [None] * len(order)
        for index in ranges:
            lower, upper = (int(rows[order[index], c]) for c in (LOWER, UPPER))
            after, values = self._bound(sink, lower)
            starts[index] = {"method": "EXCL_START_BOUND" if after else "INCL_START_BOUND", "values": values}
            after, values = self._bound(sink, upper) if upper >= 0 else (True, [])
            stops[index] = {"method": "INCL_END_BOUND" if after else "EXCL_END_BOUND", "values": values}
        return pa.array(starts, BOUND_TYPE), pa.array(stops, BOUND_TYPE)

    def _bound(self, sink: Sink, at: int) -> tuple[bool, list[dict[str, str]]]:
        """Read a bound of a range: whether it is after all clusterings with its values, and the values."""
        count = int.from_bytes(sink.bounds[at : at + 2].tobytes(), "little")
        after = bool(sink.bounds[at + 2])
        at += BOUND_HEADER_BYTES
        values = []
        for column in self.schema.clustering[:count]:
            length = int.from_bytes(sink.bounds[at : at + 4].tobytes(), "little", signed=True)
            value = sink.bounds[at + 4 : at + 4 + length].tobytes() if length >= 0 else None
            at += 4 + max(length, 0)
            json_value = value_to_json(column.type, value)
            text = json_value[1:-1] if json_value.startswith('"') else json_value
            kind = java_type(column.type, descending=column.descending)
            values.append({"name": column.name, "value": text, "type": kind})
        return after, values


@dataclass(frozen=True)
class _Event:
    """Per event: whether it deletes a row or partition, its contribution's scope and facts."""

    removes: Flags
    scope: Ints
    facts: Facts


def _ordinals(change: Ints) -> Ints:
    """Number the contributions of each change, which are adjacent."""
    indexes = np.arange(len(change))
    first = np.ones(len(change), np.bool_)
    np.not_equal(change[1:], change[:-1], out=first[1:])
    return indexes - np.maximum.accumulate(np.where(first, indexes, 0))


def _times(times: Ints, known: Flags) -> pa.Array:
    return pa.array(times, mask=~known) if known.any() else pa.nulls(len(times), pa.int64())


def cell_struct(field: pa.Field, values: pa.Array, times: pa.Array, present: Flags) -> pa.StructArray:
    """Build cells of values, ``deletion_ts`` and ``set``; null where the event doesn't contain a cell."""
    return pa.StructArray.from_arrays(
        [values, times, pa.array(present)],
        fields=[field, pa.field("deletion_ts", pa.int64()), pa.field("set", pa.bool_())],
        mask=pa.array(~present),
    )


def _log_positions(changes: pa.RecordBatch, data: Bytes, offsets: Ints) -> tuple[pa.Array, Ints]:
    """Return each change's segment file, and the logical position where its entry ends.

    A row of a snapshot is in no file, for which Debezium has an empty name and -1.
    """
    if not len(changes):
        return pa.array([], pa.utf8()), np.zeros(0, np.int64)
    versions = data[offsets[:-1]]
    logged = np.flatnonzero(versions != SNAPSHOT_TAG)
    segments, ends = np.zeros(len(changes), np.uint64), np.full(len(changes), -1, np.int64)
    segments[logged], ends[logged] = segments_and_ends(_take(changes.column("position"), logged))
    # Changes are in the order of the log, so those of a segment are adjacent.
    new = np.concatenate([[True], (segments[1:] != segments[:-1]) | (versions[1:] != versions[:-1])])
    names = [
        "" if versions[i] == SNAPSHOT_TAG else f"CommitLog-{versions[i]}-{segments[i]}.log"
        for i in np.flatnonzero(new)
    ]
    return pa.array(names, pa.utf8()).take(pa.array(np.cumsum(new) - 1)), ends


def _take(array: pa.Array, indexes: Ints) -> pa.Array:
    """Take rows of an array; without a copy in the usual case of all rows in order."""
    if len(indexes) == len(array) and np.array_equal(indexes, np.arange(len(indexes))):
        return array
    return array.take(pa.array(indexes))


def _without_values(everything: pa.Array, live: pa.Array) -> pa.Array:
    """Return maps with null for the values of removed keys, which only ``everything`` has."""
    starts = everything.offsets.to_numpy()
    names = [repr(key) for key in _entries(everything)[0].to_pylist()]
    live_starts = live.offsets.to_numpy()
    live_names = [repr(key) for key in _entries(live)[0].to_pylist()]
    kept = np.zeros(len(names), np.bool_)
    for row in range(len(everything)):
        remaining = set(live_names[live_starts[row] : live_starts[row + 1]])
        for index in range(starts[row], starts[row + 1]):
            kept[index] = names[index] in remaining
    keys, values = _entries(everything)
    kept_values = values.take(pa.array(np.arange(len(names)), mask=~kept))
    target = everything.type
    fields = list(target.value_type) if _is_list(everything) else [target.key_field, target.item_field]
    entries = pa.StructArray.from_arrays([keys, kept_values], fields=fields)
    return pa.Array.from_buffers(target, len(everything), everything.buffers()[:2], children=[entries])


def _is_list(maps: pa.Array) -> bool:
    """Return whether maps are lists of entries, which their keys require, instead of Arrow's map type."""
    return not pa.types.is_map(maps.type)


def _entries(maps: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of all maps."""
    if _is_list(maps):
        return maps.values.field(0), maps.values.field(1)
    return maps.keys, maps.items
