"""Converts slices of a VStream to change records (:mod:`.records`) on executors.

A :class:`StreamSlice` contains whole transactions as VTGate sent them, and the schema id of each table before
them. The driver numbers the transactions and parses FIELD events, which are rare; executors parse the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics
from airflow_cdc_provider.sources.vitess.records import (
    StreamSlice,
    change_records,
    require_own_shard,
    transaction_records,
    transactions_of_changes,
)
from airflow_cdc_provider.sources.vitess.rows import FAULTS, Changes, read_changes, read_rows
from airflow_cdc_provider.sources.vitess.schema_ids import REREAD
from airflow_cdc_provider.sources.vitess.values import broken_json
from airflow_cdc_provider.sources.vitess.wire import ShardTable, scan

log = logger(__name__)

_NO_HOMES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class SliceReader(Reader):
    """Converts slices to records. Picklable.

    Args:
        selects: Returns whether ``keyspace.table`` belongs to the capture.
        empty_transactions: Whether to also create records of transactions without a captured row.
        strict: Whether to fail at the first invalid row. Otherwise it becomes a normal record, which a merge
            quarantines.
        warns: Whether to log the position of invalid rows.
        homes: The shard of each reference table from which it is read (:func:`.requests.home_shards`).
    """

    selects: Callable[[str], bool]
    empty_transactions: bool = False
    strict: bool = False
    warns: bool = True
    homes: Mapping[str, str] = field(default_factory=dict)

    def read(self, parts: Iterable[StreamSlice], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read slices.

        Raises:
            CorruptInput: A row doesn't belong to the shard of its transaction; or, with ``strict``, a row is
                invalid.
        """
        return (batch for part in parts for batch in self._read(part, metrics.counts))

    def _read(self, stream_slice: StreamSlice, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        events = scan(stream_slice.data)
        captured = np.array(
            [is_captured(table, self.selects, self.homes) for table in events.tables], np.bool_
        )
        owners = transactions_of_changes(events, stream_slice.transactions)
        changes = events.changes
        inside = owners >= 0
        captured_rows = np.flatnonzero(inside & captured[events.table_numbers[changes.events]])
        require_own_shard(events, stream_slice.transactions, owners, captured_rows)
        if len(captured_rows):
            records = change_records(events, stream_slice, owners, captured_rows)
            found = read_changes(events.data, changes.starts[captured_rows], changes.ends[captured_rows])
            broken = _reasons(found, records)
            if self.strict:
                broken |= _reasons_inside(events.data, found)
            self._report_invalid(broken, records)
            _count(counts, found, broken)
            yield records
            yield from _rereads(events.data, found, records, stream_slice.json_columns)
        with_rows = np.unique(owners[captured_rows])
        counts["filtered"] += int(np.count_nonzero(inside)) - len(captured_rows)
        counts["transactions"] += len(with_rows)
        kept = np.arange(len(stream_slice.transactions)) if self.empty_transactions else with_rows
        if len(kept):
            yield transaction_records(events, stream_slice, kept)

    def _report_invalid(self, broken: Mapping[int, str], records: pa.RecordBatch) -> None:
        if not broken:
            return
        first = min(broken)
        table, shard, gtid, position = (
            records.column(name)[first].as_py()
            for name in ("source_table", "origin", "transaction", "position")
        )
        at = f"{table} in {shard} at {gtid}, row {int.from_bytes(position[-4:], 'big')}"
        if self.strict:
            raise CorruptInput(
                f"a change of {at} can't be parsed",
                found=broken[first],
                remedy="unset the option source.advanced.strict to quarantine the change and continue",
            )
        if self.warns:
            log.warning(
                "%d of %d changes can't be parsed and will be quarantined; the first: %s: %s",
                len(broken),
                records.num_rows,
                at,
                broken[first],
            )


def _rereads(
    data: Bytes,
    found: Changes,
    records: pa.RecordBatch,
    json_columns: Mapping[str, tuple[int, Sequence[int]]],
) -> Iterator[pa.RecordBatch]:
    """Yield a record for each table with JSON values that arrived broken: it must be read again."""
    for schema_id, (width, columns) in json_columns.items():
        own = pc.is_in(records.column("schema_id"), pa.array([schema_id]))
        rows = np.flatnonzero(own.to_numpy(zero_copy_only=False))
        values = read_rows(data, found.after.starts[rows], found.after.ends[rows], width)
        spans = [(values.starts[column], values.ends[column]) for column in columns]
        broken = np.logical_or.reduce([broken_json(data, *span) for span in spans])
        if broken.any():
            row = records.slice(rows[broken][0], 1).to_pylist()[0]
            reason = f"{int(broken.sum())} rows have JSON values that arrived as text that isn't JSON"
            log.warning("%s in %s at %s: %s", row["source_table"], row["origin"], row["transaction"], reason)
            again = {**row, "kind": SCHEMA, "schema_id": REREAD, "payload": reason.encode()}
            yield pa.RecordBatch.from_pylist([again], records.schema)


def _reasons(found: Changes, records: pa.RecordBatch) -> dict[int, str]:
    """Return why row changes are invalid, by row."""
    reasons = {row: FAULTS[int(found.faults[row])] for row in np.flatnonzero(found.faults).tolist()}
    empty = (found.before.starts < 0) & (found.after.starts < 0)
    for row in np.flatnonzero(empty).tolist():
        reasons.setdefault(row, "it has neither a before-image nor an after-image")
    if records.column("schema_id").null_count:
        unnamed = records.column("schema_id").is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(unnamed).tolist():
            reasons.setdefault(row, "there are no fields of its table before it")
    return reasons


def _reasons_inside(data: Bytes, found: Changes) -> dict[int, str]:
    """Return why row images are invalid, by row; without ``strict``, merges detect these."""
    reasons: dict[int, str] = {}
    for image in (found.before, found.after):
        faults = read_rows(data, image.starts, image.ends, 0).faults
        reasons |= {row: FAULTS[int(faults[row])] for row in np.flatnonzero(faults).tolist()}
    return reasons


def _count(counts: Counter[str], found: Changes, broken: Mapping[int, str]) -> None:
    """Count captured row changes by operation."""
    before, after = found.before.starts >= 0, found.after.starts >= 0
    sound = np.ones(len(found.faults), np.bool_)
    sound[list(broken)] = False
    counts["creates"] += int(np.count_nonzero(sound & after & ~before))
    counts["updates"] += int(np.count_nonzero(sound & after & before))
    counts["deletes"] += int(np.count_nonzero(sound & before & ~after))
    counts["broken"] += int(np.count_nonzero(~sound))


def is_captured(
    table: ShardTable, selects: Callable[[str], bool], homes: Mapping[str, str] = _NO_HOMES
) -> bool:
    """Return whether a table of a shard belongs to the capture."""
    name = f"{table.keyspace}.{table.table}"
    home = homes.get(name, "").partition("/")[2]
    # After a reshard, the first shard has another name, which begins like the old one.
    is_home = not home or table.shard == home or (table.shard[:1] == home[:1] == "-")
    return bool(table.table) and is_home and selects(name)
