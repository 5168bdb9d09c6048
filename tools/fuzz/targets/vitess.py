"""Vitess: messages of VStreams, values of rows in all types and character sets, DDL, positions.

The first byte of an input chooses a part, the rest is its own:

=========== ==========================================================================
`stream`    choices: responses of events, damaged in a few places
`response`  a response
`recording` responses as VTGate's recorder wrote them: a length before each
`values`    choices: a table of columns of any types, and rows
`ddl`       the text of a statement
`copy`      choices: responses of a snapshot
`position`  choices: GTID sets and VGTIDs
=========== ==========================================================================
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import CdcError, CorruptInput
from airflow_cdc_provider.lake.reconcile import reconcile_rows
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.charsets import can_decode
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records, whole_transactions
from airflow_cdc_provider.sources.vitess.events.tables import EventForm
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.protocol import EVENT_TYPES, TYPES, FieldEvent, VGtid
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.recordings import read_recording
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory, lineage_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL
from airflow_cdc_provider.sources.vitess.snapshot import SnapshotRange, _Copy, _Progress
from airflow_cdc_provider.sources.vitess.vgtid_text import unread_vgtids, vgtid_text, vgtid_texts
from airflow_cdc_provider.sources.vitess.wire import BrokenMessage
from tests.unit.sources.vitess.alters import ALTERS
from tests.unit.sources.vitess.fake_vtgate import (
    event,
    fields,
    gtid,
    journal,
    response,
    rows,
    transaction,
    vgtid,
)
from tests.unit.sources.vitess.record_builders import batch, changed, ran, row, seen
from tests.unit.sources.vitess.record_builders import fields as typed_fields
from tools.fuzz.choices import Choices, chunk

_SHARDS: Final = ("-80", "80-", "0", "-40", "40-80")
_SQL_TYPES: Final = (
    *("bigint", "int", "tinyint", "int unsigned", "bigint unsigned", "decimal(9,2)", "decimal(65,30)"),
    *("float", "double", "varchar(20)", "char(3)", "text", "varbinary(9)", "binary(4)", "blob", "json"),
    *("date", "time(6)", "datetime(6)", "timestamp(3)", "year", "bit(9)", "enum('a','b')", "set('a','b')"),
    *("geometry", "vector(3)", "mediumtext", ""),
)
_VALUES: Final = (
    *(b"0", b"-1", b"1", b"12.50", b"1e3", b"nan", b"", b"2024-02-29", b"0000-00-00", b"-838:59:59.000001"),
    *(
        b"2024-01-02 03:04:05.123456",
        b"a",
        b"a,b",
        b'{"a":1}',
        b"\xff",
        b"\xe2\x82\xac",
        b"base64:type15:AP8=",
    ),
)


def run(data: bytes) -> None:
    """Give an input to its part.

    Raises:
        AssertionError: A promise is broken, or any other error but those that a part expects.
    """
    if data:
        PARTS[data[0] % len(PARTS)](Choices(data[1:]))


def stream(choices: Choices) -> None:
    """Assemble a stream: broken messages are quarantined; rows are decoded, or have a reason."""
    responses: list[bytes] = []
    while choices.left and len(responses) < 6:
        events = [one for _ in range(1 + choices.byte() % 3) for one in _events(choices)]
        responses.append(choices.damaged(response(*events)))
    _take(responses)


def one_response(choices: Choices) -> None:
    """Assemble bytes between valid responses."""
    before, after = ([*transaction("-80", {"-80": n, "80-": 20}, _ROWS)] for n in (11, 12))
    _take([response(fields("t", "-80"), *before), choices.rest(), response(*after)])


_ROWS: Final = rows("t", "-80", (None, ["1", "x"]))


def _take(responses: list[bytes]) -> None:
    known = {f"shop/{shard}": ShardPosition(gtid(number), 1) for shard, number in (("-80", 10), ("80-", 20))}
    start = Position(known)
    assembler = TransactionAssembler(
        start,
        lambda _: True,
        lambda *_: False,
        slice_bytes=1000,
        keep_empty=True,
        stops_at_journals=True,
    )
    for one in responses:
        try:
            if assembler.resharded is None:
                assembler.add_all([one], 1_800_000_000_000_000)
        except BrokenMessage as error:
            assembler.quarantine(one, error.found, 1_800_000_000_000_000)
        except CdcError:  # the run fails, and its message says what
            return
    Position.from_offset(assembler.position.to_offset())
    slices, records = assembler.drain(1_800_000_000_000_000)
    found = [pa.RecordBatch.from_pylist(records, CHANGE_SCHEMA)]
    with suppress(CorruptInput):
        for part in slices:
            found += SliceReader(lambda _: True, empty_transactions=True).read([part], ReadMetrics())
    for one in found:
        one.validate(full=True)
    _decode(pa.Table.from_batches(found, CHANGE_SCHEMA).combine_chunks())


def _decode(records: pa.Table) -> None:
    """Merge and publish the records of all tables."""
    listed = records.to_pylist()
    for table in sorted({one["source_table"] for one in listed if one["kind"] in (CHANGE, SNAPSHOT)}):
        with suppress(CdcError):
            own = [one for one in listed if one["kind"] == SCHEMA]
            history = TableHistory.of(table, own)
            codec = VitessCodec(table, history, lineage_of(own))
            changes = records.filter(pa.compute.equal(records["source_table"], table)).combine_chunks()
            for part in changes.to_batches():
                _merge(codec, part)
    schemas = {
        one["schema_id"]: one["payload"]
        for one in listed
        if one["kind"] == SCHEMA and len(one["schema_id"] or "") == len("0" * 32)
    }
    kinds = ("change", "snapshot", "transaction")
    chosen = [one for one in listed if one["kind"] in kinds or one["schema_id"] == DDL]
    events = pa.RecordBatch.from_pylist(chosen, CHANGE_SCHEMA)
    with suppress(CdcError, KeyError):  # the caller looks the fields up, and reports what isn't recorded
        decode_records(
            events.slice(0, whole_transactions(events)),
            lambda _, schema_id: schemas[schema_id],
            EventForm(),
            lambda *_: True,
        )


def _merge(codec: VitessCodec, part: pa.RecordBatch) -> None:
    decoded = codec.decode(part, ())
    decoded.contributions.validate(full=True)
    assert len(decoded.reasons) == len(decoded.undecodable)
    assert decoded.contributions.nbytes <= 100 * part.nbytes + (1 << 16), "much comes out of little"
    table = pa.Table.from_batches([decoded.contributions])
    for live in reconcile_rows(table, 0, min_generation=0).live.combine_chunks().to_batches():
        projected = codec.project(live)
        projected.validate(full=True)
        assert projected.num_rows == live.num_rows
        assert len(list(codec.to_json(live))) == live.num_rows


def recording(choices: Choices) -> None:
    """Read a recording: invalid messages are skipped with a reason."""
    found = read_recording(choices.rest())
    assert all(reason for _, reason in found.broken)
    for number in range(len(found.events)):
        found.events.table(number)


def values(choices: Choices) -> None:
    """Decode rows of columns of any types."""
    columns = FieldEvent(table_name="shop.t", keyspace="shop", shard="-80")
    columns.enum_set_string_values = bool(choices.byte() % 2)
    numbers = sorted(TYPES)
    for number in range(1 + choices.byte() % 5):
        kind = choices.one_of(numbers)
        sql = choices.text() if choices.byte() % 8 == 7 else choices.one_of(_SQL_TYPES)
        name = choices.text() if choices.byte() % 8 == 7 else f"c{number}"
        flags = 3 if not number else choices.byte()
        columns.fields.add(
            name=name,
            type=kind,
            column_type=sql,
            charset=choices.byte() + 256 * (choices.byte() % 2),
            flags=flags,
            column_length=choices.byte(),
            decimals=choices.byte(),
        )
    listed: list[dict[str, Any]] = [seen(columns, 1)]
    if choices.byte() % 2:
        listed.append(ran(choices.text(), 2))
        listed.append(seen(typed_fields({"id": "bigint", "v": "varchar(20)"}), 3))
    for number in range(1 + choices.byte() % 3):
        images = [[_value(choices) for _ in columns.fields] for _ in range(2)]
        listed.append(changed(columns, _change(choices, images), 4, number=number))
    for field in columns.fields:
        can_decode(str(field.charset))
    _decode(pa.Table.from_batches([batch(listed)]))


def _change(choices: Choices, images: list[list[bytes | None]]) -> bytes:
    from airflow_cdc_provider.sources.vitess.protocol import RowChange

    message = RowChange(after=row(images[0]))
    if choices.byte() % 2:
        message.before.CopyFrom(row(images[1]))
    return choices.damaged(bytes(message.SerializeToString()))


def _value(choices: Choices) -> bytes | None:
    kind = choices.byte()
    if kind % 8 == 0:
        return None
    return choices.chunk() if kind % 2 else choices.one_of(_VALUES)


def ddl(choices: Choices) -> None:
    """Parse a statement: what can't be parsed is unknown."""
    text = choices.rest().decode(errors="replace")
    for one in read_statement(text):
        assert one.kind in ("alter", "create", "drop", "truncate")
    base = [seen(typed_fields({"id": "bigint", "v": "varchar(20)"}), 1), ran(text, 2)]
    after = seen(typed_fields({"id": "bigint", "w": "text"}), 3)
    TableHistory.of("shop.t", [*base, after])


def copy(choices: Choices) -> None:
    """Take the responses of a snapshot's copy."""
    part = SnapshotRange("shop.t", 1_800_000_000_000_000, "-80", gtid(5), 1, "")
    taken = _Copy(part, _Progress())
    found = []
    with suppress(CdcError):
        while choices.left:
            events = [one for _ in range(1 + choices.byte() % 3) for one in _events(choices)]
            found += list(taken.take(choices.damaged(response(*events))))
    for one in found:
        one.validate(full=True)
    _decode(pa.Table.from_batches(found, CHANGE_SCHEMA).combine_chunks())


def position(choices: Choices) -> None:
    """Parse GTID sets and VGTIDs."""
    sets = []
    for _ in range(2):
        with suppress(CorruptInput):
            sets.append(GtidSet.parse(choices.text()))
    for one in sets:
        assert one.contains(one)
        assert GtidSet.parse(str(one)).contains(one)
    messages = [choices.damaged(_vgtid(choices).SerializeToString()) for _ in range(2)]
    data = np.frombuffer(b"".join(messages), np.uint8)
    ends = np.cumsum([len(one) for one in messages])
    starts = ends - [len(one) for one in messages]
    unread = set(unread_vgtids(data, starts, ends).tolist())
    kept = np.array([n not in unread for n in range(2)])
    texts = vgtid_texts(data, starts[kept], ends[kept])
    texts.validate(full=True)
    expected = [vgtid_text(one) for one, sound in zip(messages, kept, strict=True) if sound]
    assert texts.to_pylist() == expected


PARTS: Final[tuple[Callable[[Choices], None], ...]] = (
    stream,
    one_response,
    recording,
    values,
    ddl,
    copy,
    position,
)


def _events(choices: Choices) -> list[Any]:
    shard = choices.one_of(_SHARDS)
    kind = choices.byte() % 8
    if kind == 0:
        return [fields(choices.one_of(("t", "u", choices.text())), shard, _names(choices))]
    if kind < 4:
        changes = choices.some(3, lambda: (_image(choices), _image(choices)))
        inside = [rows("t", shard, *changes)]
        return transaction(shard, {one: choices.byte() for one in _SHARDS[:2]}, *inside)
    if kind == 4:
        return [event("VGTID", shard, vgtid=_vgtid(choices)), event("DDL", shard, statement=choices.text())]
    if kind == 5:
        moved = journal(shard, _SHARDS[:2], {one: choices.byte() for one in _SHARDS[3:]})
        return [moved, event("VGTID", shard, vgtid=_vgtid(choices)), event("COMMIT", shard)]
    if kind == 6:
        return [event("VGTID", shard, vgtid=_vgtid(choices)), event("COMMIT", shard)]
    return [event(choices.one_of(sorted(EVENT_TYPES)), shard if choices.byte() % 2 else "")]


def _vgtid(choices: Choices) -> Any:
    if choices.byte() % 2:
        return vgtid({one: choices.byte() for one in _SHARDS[: choices.byte() % 5]})
    message = VGtid()
    for _ in range(choices.byte() % 4):
        added = message.shard_gtids.add(keyspace="shop", shard=choices.one_of(_SHARDS))
        added.gtid = choices.one_of((gtid(15), "current", "", choices.text()))
        for _ in range(choices.byte() % 2):
            key = added.table_p_ks.add(table_name=choices.text())
            key.lastpk.rows.add(lengths=[choices.byte()], values=choices.chunk())
    return message


def _names(choices: Choices) -> list[str]:
    return ["id", *choices.some(3, lambda: choices.one_of(("name", "v", "@1", "ID", choices.text())))]


def _image(choices: Choices) -> list[str] | None:
    kind = choices.byte() % 4
    return None if kind == 0 else ["1", "x"] if kind == 1 else choices.some(4, choices.text)


def seeds() -> Iterator[bytes]:
    """Yield statements, recorded messages, and random choices."""
    names = [part.__name__ for part in PARTS]
    for words, _ in ALTERS:
        yield bytes([names.index("ddl")]) + f"alter table t {words}".encode()
    yield bytes([names.index("ddl")]) + b"RENAME TABLE `t` TO `_vt_hld_1`, shop.`u` TO shop.`t`"
    yield bytes([names.index("ddl")]) + b"create table t (id int) /*!80023 x */"
    for text in (gtid(5), "MariaDB/0-1-2,3-4-5", "FilePos/a:12", "current", f"{gtid(5)}:7-9:11"):
        yield bytes([names.index("position")]) + chunk(text.encode()) * 2
    whole = [response(fields("t", "-80")), response(*transaction("-80", {"-80": 12, "80-": 20}, _ROWS))]
    for one in whole:
        yield bytes([names.index("one_response")]) + one
    yield bytes([names.index("recording")]) + b"".join(bytes([len(one)]) + one for one in whole)
    rng = random.Random(1)
    for part in ("stream", "values", "copy", "position"):
        for _ in range(100):
            yield bytes([names.index(part)]) + rng.randbytes(rng.randrange(20, 300))
