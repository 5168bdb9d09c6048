"""Rows of a log table put together to the base table: what a reader must make of them, in the plainest form.

Written from what the log's columns mean, row by row and without a thought for order: it is the inverse of
``server_kit.scylla.log_rows``, and shows that log rows lose nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.mutations import path_type
from server_kit.scylla.partitions import Bound, Cell, Marker, Partition, Range, Row
from server_kit.scylla.tables import AFTER, BEFORE, Table
from server_kit.scylla.timeuuids import time_us
from server_kit.scylla.values import sort_key, unpack_elements, unpack_pairs, unpack_parts

LogColumns = Mapping[str, bytes | None]


class Replay:
    """Takes log rows in any order."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.base = BaseTable(table)
        self._changes: dict[tuple[bytes, bytes], list[LogColumns]] = defaultdict(list)

    def add(self, row: LogColumns) -> None:
        stream, moment = row["cdc$stream_id"], row["cdc$time"]
        assert stream is not None
        assert moment is not None
        self._changes[stream, moment].append(row)

    def finish(self) -> BaseTable:
        for (_, moment), rows in self._changes.items():
            rows.sort(key=lambda row: row["cdc$batch_seq_no"] or b"")
            assert rows[-1]["cdc$end_of_batch"] == b"\1"
            assert all(row["cdc$end_of_batch"] is None for row in rows[:-1])
            start: Bound | None = None
            for row in rows:
                start = self._row(row, time_us(moment), start)
        return self.base

    def _row(self, row: LogColumns, time: int, start: Bound | None) -> Bound | None:
        key = tuple(row[column.name] or b"" for column in self.table.partition)
        partition = Partition(self.table, key)
        prefix = []
        for column in self.table.clustering:
            value = row[column.name]
            if value is None:
                break
            prefix.append(value)
        operation = int.from_bytes(row["cdc$operation"] or b"", "big", signed=True)
        bound: Bound | None = None
        match operation:
            case 1 | 2:
                static = bool(self.table.clustering) and not prefix
                written = partition.static if static else partition.row(prefix)
                self._write(written, row, time, static=static, inserted=operation == 2)
            case 3 | -3:
                partition.row(prefix).deletion = time
            case 4 | -4:
                partition.deletion = time
            case 5 | 6:
                bound = Bound(tuple(prefix), BEFORE if operation == 5 else AFTER)
            case 7 | 8:
                assert start is not None
                partition.ranges = [
                    Range(start, Bound(tuple(prefix), AFTER if operation == 7 else BEFORE), time)
                ]
            case 0 | 9:  # images are read without isolation: the other rows have the changes
                pass
            case _:
                raise AssertionError(operation)
        self.base.apply(partition)
        return bound

    def _write(self, written: Row, row: LogColumns, time: int, *, static: bool, inserted: bool) -> None:
        ttl = int.from_bytes(row["cdc$ttl"] or b"", "big")
        expires = time // 1_000_000 + ttl if ttl else 0
        if inserted:
            written.marker = Marker(time, ttl, expires)
        for column in self.table.static_columns if static else self.table.regular:
            name, kind = column.name, column.type
            value, deleted = row[name], row[f"cdc$deleted_{name}"]
            if not kind.multi_cell:
                if value is not None or deleted is not None:
                    assert value is None or deleted is None
                    written.put(
                        name,
                        Cell(time, value, ttl if value is not None else 0, expires * (value is not None)),
                    )
                continue
            elements = written.of(name)
            if deleted is not None:
                elements.tombstone = time - 1
            cells: list[tuple[bytes, bytes | None]] = []
            if value is not None and kind.name == "udt":
                cells = [
                    (n.to_bytes(2, "big"), v) for n, v in enumerate(unpack_parts(value)) if v is not None
                ]
            elif value is not None and kind.name == "set":
                cells = [(element, b"") for element in unpack_elements(value)]
            elif value is not None:
                cells = list(unpack_pairs(value))
            removed = row[f"cdc$deleted_elements_{name}"]
            cells += [(path, None) for path in unpack_elements(removed)] if removed is not None else []
            for path, part in cells:
                live = part is not None
                cell = Cell(time, part, ttl * live, expires * live)
                elements.put(sort_key(path_type(kind), path), path, cell)
