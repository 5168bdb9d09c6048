"""Rows that recorded VStreams add up to, against the same messages folded by protobuf in plain Python."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.migration.settings_file import load_connector_file
from airflow_cdc_provider.sources.recordings import Recording
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.protocol import EVENT_TYPES, VStreamResponse
from tests.recorded_lines import row_lines

FIXTURES = Path(__file__).parents[4] / "fixtures" / "vitess"
NAMES = ("default", "tx", "txordered", "unsharded", "strconnect", "dblnano", "iso", "micros")
NOW_NS = 1_800_000_000_000_000_000
KINDS = {number: name for name, number in EVENT_TYPES.items()}
DEFAULTS = {("shop.evolve", "c"): "9.99"}
RENAMED = {("shop.evolve", "c"): "cc"}

Rows = Counter[tuple[str, str]]


def declared(name: str) -> Connector:
    return load_connector_file(FIXTURES / "config" / f"{name}.properties").connector


def printed(connector: Connector, path: Path, table: str = "") -> Rows:
    skipped = SkippedRecords(strict=True)
    lines = row_lines(connector, Recording(path, "", NOW_NS, table), skipped)
    found: Rows = Counter()
    for part in lines:
        for line in text_of(part).splitlines():
            row = json.loads(line)
            found[row["table"], json.dumps(row["row"], sort_keys=True)] += 1
    assert skipped.report() == []
    return found


def messages(path: Path) -> Iterator[Any]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield VStreamResponse.FromString(data[at : at + length])
        at += length


def text_of_value(field: Any, raw: bytes | None) -> str | None:
    """Show a value as MySQL's SELECT does, by rules of its own."""
    if raw is None:
        return None
    kind = field.column_type
    if re.match(r"(var)?binary|\w*blob|bit|geometry|point|\w*linestring|\w*polygon|multipoint|vector", kind):
        return "0x" + raw.hex().upper()
    if found := re.match(r"decimal\((\d+),(\d+)\)", kind):
        return format(Decimal(raw.decode()), f".{found.group(2)}f")
    if found := re.match(r"int\((\d+)\) unsigned zerofill", kind):
        return raw.decode().zfill(int(found.group(1)))
    if kind in ("float", "double"):
        return shown_float(
            np.float32(raw.decode()) if kind == "float" else float(raw), single=kind == "float"
        )
    return raw.decode("latin1" if field.charset == 8 else "utf-8")


def shown_float(number: Any, *, single: bool) -> str:
    text = f"{float(number):.6g}" if single else repr(float(number))
    plain = format(Decimal(text), "f")
    whole = plain.lstrip("-").partition(".")[0]
    if len(whole) > 15 and float(text) == int(float(text)):
        mantissa, _, power = f"{Decimal(text):e}".partition("e")
        digits = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{digits}e{int(power)}"
    return plain.removesuffix(".0")


def folded(path: Path) -> Rows:
    """Fold a recording: the last change of each row of each shard, rows of tables without a key counted."""
    fields: dict[tuple[str, str], Any] = {}
    newest: dict[str, list[str]] = {}
    keyed: dict[tuple[str, str, Any], dict[str, Any]] = {}
    keyless: Counter[tuple[str, str, str]] = Counter()

    def as_text(table: str, shard: str, row: Any) -> dict[str, Any]:
        at, found = 0, {}
        for field, length in zip(fields[shard, table], row.lengths, strict=True):
            raw = None if length < 0 else row.values[at : at + length]
            at += max(length, 0)
            found[field.name] = text_of_value(field, raw)
        return found

    def key(table: str, shard: str, row: dict[str, Any]) -> Any:
        names = [field.name for field in fields[shard, table] if field.flags & 2]
        return tuple(row[name] for name in names)

    def apply(event: Any, change: Any) -> None:
        table, shard = event.table_name, event.shard
        before = as_text(table, shard, change.before) if change.HasField("before") else None
        after = as_text(table, shard, change.after) if change.HasField("after") else None
        for row, sign in ((before, -1), (after, 1)):
            if row is None:
                continue
            if not any(field.flags & 2 for field in fields[shard, table]):
                keyless[table, shard, json.dumps(row, sort_keys=True)] += sign
            elif sign < 0:
                keyed.pop((table, shard, key(table, shard, row)), None)
            else:
                keyed[table, shard, key(table, shard, row)] = row

    for message in messages(path):
        for event in message.events:
            kind = KINDS[event.type]
            if kind == "FIELD":
                table = event.field_event.table_name
                fields[event.field_event.shard, table] = list(event.field_event.fields)
                newest[table] = [field.name for field in event.field_event.fields]
            elif kind == "ROW":
                for change in event.row_event.row_changes:
                    apply(event.row_event, change)
            elif kind == "DDL" and event.statement.startswith("truncate"):
                table = f"{event.keyspace}.{event.statement.split()[-1]}"
                for one in [one for one in keyed if one[:2] == (table, event.shard)]:
                    del keyed[one]
    out: Rows = Counter()
    for (table, _, _), row in keyed.items():
        for name, new in ((n, new) for (t, n), new in RENAMED.items() if t == table and new in newest[table]):
            row[new] = row.pop(new, row.pop(name, DEFAULTS.get((table, name))))
        out[table, json.dumps({name: row[name] for name in newest[table]}, sort_keys=True)] += 1
    for (table, _, text), count in keyless.items():
        out[table, text] += count
    return +out


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_adds_up_to_the_rows_of_its_messages(name: str) -> None:
    path = FIXTURES / "vstream" / f"{name}.vstream"
    connector = declared(name)
    assert isinstance(connector.source, VitessOptions)
    keyspace = connector.source.keyspace
    expected = Counter({row: n for row, n in folded(path).items() if connector.selects(row[0])})
    assert {table.partition(".")[0] for table, _ in expected} == {keyspace}
    assert printed(connector, path) == expected


@pytest.mark.parametrize("name", ["follow", "include_journal", "stop_on_reshard"])
def test_rows_of_shards_created_by_a_reshard_are_printed(name: str) -> None:
    path = FIXTURES / "reshard" / f"{name}.vstream"
    found = printed(declared("default"), path)
    assert found == folded(path)
    assert len(found) == (1 if name == "stop_on_reshard" else 3)


def test_one_table_can_be_selected() -> None:
    found = printed(declared("default"), FIXTURES / "vstream" / "default.vstream", "shop.nokey")
    assert {table for table, _ in found} == {"shop.nokey"}
    assert sorted(found.values()) == [1, 2]


def test_added_dropped_and_renamed_columns_are_printed_as_mysql_would_now() -> None:
    found = printed(declared("default"), FIXTURES / "vstream" / "default.vstream", "shop.evolve")
    rows = sorted((json.loads(row) for _, row in found), key=lambda row: row["id"])
    assert rows == [
        {"id": "1", "b": "e1", "cc": "1.00"},
        {"id": "2", "b": "e2", "cc": "9.99"},
        {"id": "4", "b": "e4", "cc": "4.44"},
        {"id": "5", "b": "e5 long text now", "cc": "5.55"},
        {"id": "6", "b": "end", "cc": "6.66"},
    ]
