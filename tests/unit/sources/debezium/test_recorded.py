"""What real connectors of Debezium sent of real databases gives mirrors the rows that these have."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pytest

from airflow_cdc_provider.sources.debezium.connect_schema import TYPES, ConnectField
from airflow_cdc_provider.sources.debezium.converters import FramedConverter
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas
from airflow_cdc_provider.sources.debezium.states import spellings
from tests.conftest import ROOT
from tests.unit.sources.debezium.debezium_messages import PLACEHOLDER, Table, feed_of
from tests.unit.sources.debezium.recorded import AVRO, Pairs, Recording, recording
from tests.unit.sources.debezium.reported_values import reported, shown

DATABASES: Final = ("postgresql", "mysql")
RUNS: Final = [(database, run) for database in DATABASES for run in recording(database).records]
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "moved": ("id", "part"),
    "Odd.Name": ("Id",),
    "keyless": ("a",),
    "binary_keys": ("k",),
    "time_keys": ("k",),
    "decimal_keys": ("k",),
}
BINARY: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "text": lambda raw: base64.b64encode(raw).decode(),
    "double": bytes.hex,
    "isostring": lambda raw: base64.urlsafe_b64encode(raw).decode(),
}
ADJUSTED: Final = {"ünï": "_n_", "a b": "a_b", "c-d": "c_d"}
"""Names of columns that Avro doesn't take, and what ``field.name.adjustment.mode`` makes of them."""


LAKE_WORDS: Final = {
    pa.bool_().id: "boolean",
    pa.int32().id: "int32",
    pa.int64().id: "int64",
    pa.float32().id: "float32",
    pa.float64().id: "float64",
    pa.decimal128(1).id: "decimal",
    pa.string().id: "string",
    pa.binary().id: "binary",
    pa.date32().id: "date32",
    pa.struct([]).id: "struct",
}


@dataclass(frozen=True)
class Difference:
    """Differences between Debezium's events and the database (``docs/source-debezium.md``).

    Args:
        table: The table.
        columns: Its columns, separated by blanks; empty for whole rows.
        rows: Their keys, separated by blanks; empty for any.
        runs: The configurations; empty for all.
    """

    table: str
    columns: str
    rows: str = ""
    runs: str = ""

    def covers(self, run: str, table: str, row: str, column: str) -> bool:
        return (
            table == self.table
            and column in (self.columns.split() or [""])
            and row in (self.rows.split() or [row])
            and run in (self.runs.split() or [run])
        )


_OTHER_DAYS: Final = "6 7 8 9 106 107 108 109"
DIFFERENCES: Final[Mapping[str, tuple[Difference, ...]]] = {
    "postgresql": (
        # Rows that no event was sent of when their table was altered.
        Difference("altered", "renamed", "1 3"),
        Difference("altered", "renamed", "5"),
        Difference("altered", "filled", "3"),
        # The default in place of null.
        Difference("altered", "filled", "5", "defaults avro"),
        # Events that weren't sent (skipped.operations), or that the transform leaves out; rows without key.
        Difference("emptied", "", "1", "defaults unwrapped"),
        Difference("keyless", "", "", "defaults"),
        # Large values that an update left alone, of types that have no placeholder, or where the key changed.
        Difference("toasted", "a2 ab aci ad ah ai al amc an aoid ar atm atmz ats atz vb"),
        Difference("toasted", "num", "", "defaults double isostring nanoseconds unwrapped avro"),
        Difference("toasted", "raw", "", "text isostring"),
        Difference("toasted", "araw", "", "text double isostring"),
        Difference("toasted", "adt", "", "text isostring"),
        Difference("moved", "big", "1030/b"),
        # An array of an enumeration with a null; fractions of seconds in an array.
        Difference("arrays", "aen", "1 3 101"),
        Difference("toasted_whole", "atmz", "2 10"),
        # Days of the Julian calendar, and before the year 1, as the snapshot reads them.
        Difference("times", "d", "5 6"),
        Difference("times", "d ts ts0 ts3", _OTHER_DAYS, "isostring"),
        Difference("times", "ts ts0 ts3", "7 8 107 108", "nanoseconds"),
    ),
    "mysql": (
        Difference("altered", "renamed", "1 3"),
        Difference("altered", "renamed", "5"),
        Difference("altered", "filled", "3"),
        Difference("altered", "filled", "5", "defaults avro"),
        Difference("defaulted", "a", "1 2 4", "defaults avro"),
        Difference("defaulted", "n v d", "2 4", "defaults avro"),
        Difference("emptied", "", "1", "defaults unwrapped"),
        Difference("keyless", "", "", "defaults"),
        Difference("renamed_to", "", "1"),
        # The snapshot reads FLOAT with six digits.
        Difference("numbers", "r", "2 3"),
        Difference("numbers", "i8u", "3 103", "defaults double isostring unwrapped avro"),
        Difference("texts", "e", "2 102"),
        # A negative TIME within JSON.
        Difference("texts", "j", "105"),
        # Days that are none, years of two digits, days of the Julian calendar, the year 0.
        Difference("times", "dn dtn tsn", "6 106"),
        Difference("times", "d dt dt3 dt6 dn dtn", "7 107", "defaults double isostring unwrapped avro"),
        Difference("times", "dt dtn", "5"),
        Difference("times", "y", "5 105"),
        Difference("times", "t t3 t6", "2 3 5 102 103 105", "text isostring"),
    ),
}


def mirror(found: Recording, run: str, table: str) -> Table:
    more: dict[str, Any] = {}
    if run == AVRO:
        converter = FramedConverter(RegisteredSchemas(found, "avro"))
        more = {"key_converter": converter, "value_converter": converter}
    unwrapped = run == "unwrapped"
    feed = feed_of(f"server.shop.{table}", unwrapped=unwrapped, **more)
    return Table(feed=feed, form=Form(unwrapped, spellings(PLACEHOLDER)))


def name_in(run: str, column: str) -> str:
    return ADJUSTED.get(column, column) if run == AVRO else column


def by_key(table: str, rows: list[dict[str, Any]], names: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    return {"/".join(str(row[names(name)]) for name in KEYS.get(table, ("id",))): row for row in rows}


def theirs(
    found: Recording, run: str, table: str, fields: Mapping[str, ConnectField]
) -> list[dict[str, Any]]:
    """Return the database's rows as a mirror must show them; of columns that Debezium has."""
    known = found.tables[table]
    kept = [(name, kind) for name, kind in known["columns"].items() if name_in(run, name) in fields]
    indexes = {name: number for number, name in enumerate(known["columns"])}
    return [
        {
            name: reported(row[indexes[name]], kind, fields[name_in(run, name)], BINARY.get(run, bytes))
            for name, kind in kept
        }
        for row in known["rows"]
    ]


def differences(
    found: Recording, run: str, table: str, batch: pa.RecordBatch, own: Table
) -> Iterator[tuple[str, str]]:
    """Yield row and column of what differs; column empty where a row is missing, or one too many."""
    assert own.codec is not None
    fields = own.codec.rows.fields
    kinds = found.tables[table]["columns"]
    mine = by_key(table, batch.to_pylist(), lambda name: name_in(run, name))
    expected = by_key(table, theirs(found, run, table, fields), str)
    for row in mine.keys() ^ expected.keys():
        yield row, ""
    for row in mine.keys() & expected.keys():
        for name, value in expected[row].items():
            column = name_in(run, name)
            if shown(mine[row][column], kinds[name], fields[column]) != value:
                yield row, name


def replay(own: Table, pairs: Pairs, seed: int) -> pa.RecordBatch:
    """Take messages in batches of any size; sometimes Debezium begins again with some that it has sent."""
    chance = random.Random(seed)
    at = 0
    while True:
        count = chance.randint(1, len(pairs))
        batch = own.take(*pairs[at : at + count])
        at += count
        if at >= len(pairs):
            return batch
        at -= chance.choice([0, 0, chance.randint(0, at)])


@pytest.mark.parametrize(("database", "run"), RUNS)
def test_mirrors_have_the_rows_that_the_database_shows(database: str, run: str) -> None:
    found = recording(database)
    unused = {one for one in DIFFERENCES[database] if run in (one.runs.split() or [run])}
    for table in found.tables:
        own = mirror(found, run, table)
        batch = own.take(*found.records[run][table])
        assert not own.kinds["quarantine"]
        for row, column in differences(found, run, table, batch, own):
            known = {one for one in DIFFERENCES[database] if one.covers(run, table, row, column)}
            assert known, f"{table}, row {row}, column {column}"
            unused -= known
    assert not unused


@pytest.mark.parametrize(("database", "run"), RUNS)
def test_messages_sent_again_and_cut_in_any_way_change_nothing(database: str, run: str) -> None:
    found = recording(database)
    for table in found.tables:
        pairs = found.records[run][table]
        whole, cut = mirror(found, run, table), mirror(found, run, table)
        expected, batch = whole.take(*pairs), replay(cut, pairs, seed=7)
        assert batch.schema.names == expected.schema.names
        assert sorted(map(repr, batch.to_pylist())) == sorted(map(repr, expected.to_pylist())), table


@pytest.mark.parametrize(("database", "run"), [one for one in RUNS if one[1] != AVRO])
def test_rows_are_the_same_json_with_schemas_off(database: str, run: str) -> None:
    found = recording(database)
    for table in found.tables:
        both = []
        for records in (found.records, found.plain):
            own = mirror(found, run, table)
            own.take(*records[run][table])
            assert own.known is not None and own.codec is not None
            states = own.known.filter(pa.compute.equal(own.known["op"], 0)).combine_chunks().to_batches()
            both.append(sorted(text for batch in states for text in own.codec.to_json(batch)))
        assert both[0] == both[1], table


def test_values_beyond_a_column_are_in_the_rest() -> None:
    found = recording("postgresql")
    own = mirror(found, "defaults", "times")
    rows = by_key("times", own.take(*found.records["defaults"]["times"]).to_pylist(), str)
    rest_columns = {row: sorted(json.loads(one["_rest"])) for row, one in rows.items() if one["_rest"]}
    stamps = ["ts", "ts0", "ts3", "tsz", "tsz0"]
    assert rest_columns.pop("6") == stamps  # whose date the snapshot reads without its era
    assert rest_columns == {row: ["d", *stamps] for row in ("7", "8", "9", "106", "107", "108", "109")}


def documented_types() -> Iterator[tuple[str, str, str]]:
    """Yield database, type and lake type of the documentation's table."""
    page = (ROOT / "docs" / "source-debezium.md").read_text()
    rows = (
        page.partition("| lake | PostgreSQL | MySQL |\n|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    )
    for lake, *sides in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows):
        for database, side in zip(DATABASES, sides, strict=True):
            for kind in re.findall("`([^`]+)`", side):
                yield database, kind, lake


def lake_words(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp (µs, UTC)" if kind.tz else "timestamp without zone (µs)"
    return LAKE_WORDS[kind.id]


def plain_kind(kind: str) -> str:
    kind = kind.removeprefix("MySQL's ").removesuffix(" without time zone").removesuffix(" zerofill")
    if kind.endswith("range"):
        return "ranges"
    kept = r"numeric|decimal|bit|float|double|tinyint"
    return kind if re.match(rf"({kept})\(", kind) else re.sub(r"\(.*?\)", "", kind)


@pytest.mark.parametrize("database", DATABASES)
def test_columns_have_the_types_that_the_documentation_shows(database: str) -> None:
    found = recording(database)
    documented = {kind: lake for one, kind, lake in documented_types() if one == database}
    checked = set()
    for table in found.tables:
        own = mirror(found, "defaults", table)
        schema = own.take(*found.records["defaults"][table]).schema
        for column, kind in found.tables[table]["columns"].items():
            if (plain := plain_kind(kind)) in documented:
                assert lake_words(schema.field(column).type) == documented[plain], column
                checked.add(plain)
    assert checked == set(documented)


@pytest.mark.parametrize("database", DATABASES)
def test_the_type_table_names_every_type_of_the_connectors(database: str) -> None:
    found = recording(database)
    names = {name for row in TYPES for name in re.findall(r"\w+", row.names)}
    for run, table in [(run, table) for run in found.records for table in found.tables]:
        own = mirror(found, run, table)
        own.take(*found.records[run][table])
        assert own.codec is not None
        for one in own.codec.rows.fields.values():
            inner = [part.logical for part in one.fields if one.type == "array"]
            assert {logical.rpartition(".")[2] for logical in (one.logical, *inner) if logical} <= names, one
