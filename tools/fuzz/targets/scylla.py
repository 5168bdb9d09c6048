"""ScyllaDB and CQL: pages of logs, changes in them, pages of snapshots, texts of types and schemas.

The first byte of an input chooses a part, the second a table, the rest is its own:

=========== ===========================================================================
`page`      number of rows, then a page of a log; lengths of values are set right
`rows`      choices: log rows with any values
`payload`   a change as it is stored; it stands between two sound ones
`snapshot`  number of rows, then a page of a snapshot's query; lengths are set right
`types`     the text of a type, of a Java type, of statements
=========== ===========================================================================
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import UNRESOLVED
from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, SNAPSHOT
from airflow_cdc_provider.exceptions import CdcError, CorruptInput
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.reasons import CODES
from airflow_cdc_provider.sources.cql.snapshot import compile_select, page_records
from airflow_cdc_provider.sources.cql.types import no_udts, parse_java_type, parse_type, to_cql
from airflow_cdc_provider.sources.scylla.capture import GroupRead
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder
from airflow_cdc_provider.sources.scylla.events.tables import event_table
from airflow_cdc_provider.sources.scylla.log_pages import MalformedPage, page_changes
from airflow_cdc_provider.sources.scylla.quarantine import QuarantineReader, payload_rows
from airflow_cdc_provider.sources.scylla.records import to_records
from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.schemas import log_columns
from server_kit.scylla.tables import Table
from server_kit.scylla.workload import draw_table
from tests.unit.server_kit.scylla.item import ITEM, PAIRS, THINGS
from tests.unit.sources.scylla.log_rows import STREAM, cdc_time
from tests.unit.sources.scylla.log_rows import rows as log_rows
from tests.unit.sources.scylla.logged import (
    change_record,
    changes,
    codec_of,
    logged_rows,
    record_of,
    schema_payload,
    table_schema,
)
from tests.unit.sources.scylla.random_log_rows import random_changes
from tests.unit.sources.scylla.small_log import TABLE
from tools.fuzz.choices import Choices

_NOW: Final = 1_700_000_010
_READ_US: Final = 1_700_000_005_000_000
_CODES: Final = {name for name, _ in CODES.values()}
_MOST_ROWS: Final = 1 << 32
_DRAWN: Final = 5


class _Form(NamedTuple):
    table: Table
    codec: ScyllaCodec
    decoder: EventDecoder


def run(data: bytes) -> None:
    """Give an input to its part.

    Raises:
        AssertionError: A promise is broken, or any other error but those that a part expects.
    """
    if len(data) > 1:
        forms = _forms()
        PARTS[data[0] % len(PARTS)](forms[data[1] % len(forms)], Choices(data[2:]))


def page(form: _Form, choices: Choices) -> None:
    """Split a page into changes: all its rows are accounted for."""
    del form
    columns, more = len(TABLE.columns), bool(choices.byte() % 2)
    rows, data = _page(choices, columns)
    try:
        found, left, rest = page_changes(data, rows, columns, more=more)
    except MalformedPage:
        return
    assert int(found.rows.sum()) + rest == rows
    assert left <= len(data)
    records = to_records(found, GroupRead("s.t", "0", 0, 0, 1, (STREAM,)), STREAM, TABLE)
    records.validate(full=True)
    quarantined = records.filter(pc.equal(records["kind"], QUARANTINE))
    for again in QuarantineReader({TABLE.schema_id: columns})(quarantined):
        again.validate(full=True)
    for payload in records.column("payload").to_pylist():
        if payload[:1] == b"L":
            assert sum(len(row) + 4 for row in payload_rows(payload)) + 1 == len(payload)


def _page(choices: Choices, columns: int) -> tuple[int, bytes]:
    """Return number of rows and bytes of a page: of values by choice, or raw."""
    if choices.byte() % 4 == 0:
        return int.from_bytes(choices.take(4), "big") % _MOST_ROWS, choices.rest()
    rows = choices.byte() % 5
    values = [_native(choices) for _ in range(rows * columns)]
    return rows, choices.damaged(_packed(values))


def _packed(values: list[bytes | None]) -> bytes:
    return b"".join(b"\xff\xff\xff\xff" if v is None else struct.pack(">i", len(v)) + v for v in values)


def _native(choices: Choices) -> bytes | None:
    kind = choices.byte() % 8
    if kind < 2:
        return None
    if kind < 4:
        return struct.pack(">i", choices.integer(32))
    return choices.one_of(_VALUES) if kind < 6 else choices.chunk()


_VALUES: Final = (
    *(b"", b"\0", b"\1", b"text", cdc_time(_READ_US), bytes(16), bytes(8), STREAM, b"\xff" * 8),
    *(struct.pack(">ii", 1, 4) + bytes(4), struct.pack(">i", 1 << 30), struct.pack(">ii", 2, -1)),
    *(b"\x7f" + b"\xff" * 7, b"\xf0" + b"\xff" * 9, b"\xff\xff\xff\xff" * 3),
)


def rows(form: _Form, choices: Choices) -> None:
    """Decode log rows of any values."""
    names = [name for name, _ in log_columns(form.table)]
    key = form.table.partition[0].name
    given = []
    for _ in range(1 + choices.byte() % 3):
        row = {"op": choices.byte() % 12 - 1}
        if choices.byte() % 4 == 0:
            row["ttl"] = abs(choices.integer(63))
        given.append(row)
    listed = [dict(one) for one in log_rows(*given, key=key)]
    for one in listed:
        for name in names:
            kind = choices.byte() % 4
            if kind == 0 and name not in ("cdc$time", "cdc$stream_id"):
                one[name] = None
            elif kind == 1 and (not name.startswith("cdc$") or "deleted" in name):
                one[name] = _native(choices)
    life = choices.integer(32) if choices.byte() % 4 == 0 else None
    read_at = _NOW if choices.byte() % 2 else None
    record = change_record(form.table, listed, read_at=read_at, life_seconds=life)
    _decode(form, [record])


def payload(form: _Form, choices: Choices) -> None:
    """Decode a stored change between two sound ones."""
    sound = _sound(form.table)
    broken = {**sound, "payload": choices.rest()}
    _decode(form, [sound, broken, sound])


@cache
def _sound_rows(table: Table) -> tuple[dict[str, bytes | None], ...]:
    chance = random.Random(3)
    (first, *_) = random_changes(chance, BaseTable(table), 5)
    return tuple(dict(row) for row in logged_rows(first))


def _sound(table: Table) -> dict[str, object]:
    return change_record(table, _sound_rows(table))


def _decode(form: _Form, records: list[dict[str, object]]) -> None:
    given = changes(records)
    decoded = form.codec.decode(given, [])
    decoded.contributions.validate(full=True)
    assert len(decoded.reasons) == len(decoded.undecodable)
    assert all(reason.split(":")[0] in _CODES for reason in decoded.reasons), decoded.reasons
    if len(records) > 1:
        assert set(decoded.undecodable) <= {1}
    assert decoded.contributions.nbytes <= 100 * given.nbytes + (1 << 16), "much comes out of little"
    _show(form.codec, decoded.contributions)
    if all(record["kind"] == CHANGE for record in records):
        with suppress(CdcError):
            form.decoder.decode(given.column("payload")).events.validate()


def _show(codec: ScyllaCodec, contributions: pa.RecordBatch) -> None:
    decided = pa.Table.from_batches([contributions.filter(pc.not_equal(contributions["scope"], UNRESOLVED))])
    live = reconcile_cells(decided, _NOW, "scylla").live.combine_chunks()
    for part in live.to_batches():
        with suppress(CdcError):
            projected = codec.project(part)
            projected.validate()  # text is as the server validated it: not full
            assert projected.num_rows == part.num_rows
        with suppress(CdcError):
            assert len(list(codec.to_json(part))) == part.num_rows


def snapshot(form: _Form, choices: Choices) -> None:
    """Read a page of a snapshot's query, and decode its records."""
    schema = table_schema(form.table)
    program = compile_select(schema, elements_have_times=bool(choices.byte() % 2))
    columns = program.partition + program.clustering + 3 * len(program.shapes)
    count, data = _page(choices, columns)
    try:
        keys, payloads = page_records(program, data, count, _READ_US, "s.t")
    except CorruptInput:
        return
    record = {**_sound(form.table), "kind": SNAPSHOT}
    listed = [
        {**record, "key": key, "payload": payload}
        for key, payload in zip(keys.to_pylist(), payloads.to_pylist(), strict=True)
    ]
    if listed:
        decoded = form.codec.decode(pa.RecordBatch.from_pylist(listed, CHANGE_SCHEMA), [])
        decoded.contributions.validate(full=True)
        _show(form.codec, decoded.contributions)


def types(form: _Form, choices: Choices) -> None:
    """Parse the texts of types and statements."""
    del form
    kind, text = choices.byte() % 3, choices.rest().decode(errors="replace")
    with suppress(CdcError):
        if kind == 0:
            found = parse_type(text, no_udts)
            assert parse_type(to_cql(found)) == found
        elif kind == 1:
            parse_java_type(text)
        else:
            parse_cql(text)


PARTS: Final[tuple[Callable[[_Form, Choices], None], ...]] = (page, rows, payload, snapshot, types)


@cache
def _forms() -> tuple[_Form, ...]:
    chance = random.Random(11)
    tables = [ITEM, THINGS, PAIRS, *(draw_table(chance, "shop", f"t{n}") for n in range(_DRAWN))]
    return tuple(
        _Form(table, codec_of(table), EventDecoder(event_table(schema_payload(table)), "my.shop"))
        for table in tables
    )


def seeds() -> Iterator[bytes]:
    """Yield changes of random requests, texts, and random choices."""
    names = [part.__name__ for part in PARTS]
    chance = random.Random(1)
    for number, form in enumerate(_forms()):
        for logged in random_changes(chance, BaseTable(form.table), 20):
            raw = record_of(logged)["payload"]
            assert isinstance(raw, bytes)
            yield bytes([names.index("payload"), number]) + raw
        for part in ("page", "rows", "snapshot"):
            for _ in range(15):
                yield bytes([names.index(part), number]) + chance.randbytes(chance.randrange(20, 300))
    for kind, text in enumerate(
        (
            "map<text, frozen<list<tuple<int, uuid>>>>",
            "org.apache.cassandra.db.marshal.MapType(org.apache.cassandra.db.marshal.UTF8Type,"
            "org.apache.cassandra.db.marshal.FrozenType(org.apache.cassandra.db.marshal.Int32Type))",
            'CREATE TYPE s.p (x int); CREATE TABLE s.t (k int, c int, v frozen<p>, "V" set<text>, '
            "PRIMARY KEY (k, c)) WITH cdc = {'enabled': true} AND CLUSTERING ORDER BY (c DESC);",
        )
    ):
        yield bytes([names.index("types"), 0, kind]) + text.encode()
