"""Columns added with a default: existing rows have the value that MySQL shows, or a snapshot is due."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pymysql
import pytest

from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent
from airflow_cdc_provider.sources.vitess.schema_history import FromDefault, TableHistory
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, schema_id
from server_kit import VitessServer
from tests.integration.sources.vitess.projected import projected_rows
from tests.integration.sources.vitess.vitess_sources import captured_with_schema, snapshot, source_of

pytestmark = pytest.mark.integration

REPORTED = (
    "bit(1) NOT NULL DEFAULT 1",
    "bit(8) DEFAULT 5",
    "year DEFAULT 99",
    "decimal(4,1) DEFAULT 9.99",
    "int DEFAULT 1e3",
    "varchar(9) CHARACTER SET latin1 DEFAULT 'ü'",
    "date DEFAULT '2024-1-5'",
    "enum('a','b') DEFAULT 'B'",
    """json DEFAULT ('{"b":1,"a":2}')""",
)
PLAIN = (
    "int NOT NULL DEFAULT -5",
    "tinyint(1) DEFAULT true",
    "int(6) unsigned zerofill DEFAULT 42",
    "decimal(8,3) DEFAULT 1.5",
    "double DEFAULT 0.1",
    "float DEFAULT -0.25",
    "year DEFAULT 1999",
    "date DEFAULT '2024-01-05'",
    "datetime(3) DEFAULT '2024-01-05 10:20:30.125'",
    "time DEFAULT '-100:00:01'",
    "varchar(20) NOT NULL DEFAULT 'it''s, so'",
    "char(5) CHARACTER SET latin1 DEFAULT 'ab'",
    "enum('a','b''c') DEFAULT 'b''c'",
    "set('a','b','c') DEFAULT 'a,c'",
    "varbinary(9) DEFAULT 'ab'",
    "json DEFAULT ('{}')",
    "text DEFAULT ('x')",
    "timestamp NULL",
)
"""Defaults that don't need a snapshot."""
LAX = (
    "varchar(3) DEFAULT ('abcd')",
    "varbinary(2) DEFAULT ('abc')",
    "tinyint DEFAULT (300)",
    "int unsigned DEFAULT (-1)",
    "decimal(4,1) DEFAULT (12345)",
    "time DEFAULT ('900:00:00')",
    "date DEFAULT ('2024-02-30')",
    "text DEFAULT ''",
    "tinyblob DEFAULT ''",
)
"""Defaults that MySQL cuts or leaves out in a session without strict mode."""
STRICT = "STRICT_TRANS_TABLES"
TYPES = """
tinyint; smallint unsigned; mediumint; int; bigint; bigint unsigned; int(5) zerofill; bool; bit(1); bit(8)
bit(13); decimal(4,1); decimal(10,0); decimal(6,6); decimal(40,3); float; double; float(7,2); year; date
datetime
datetime(3); timestamp NULL; timestamp(6); time; time(2); json; text; blob; binary(3); varbinary(9); char(4)
varchar(9); varchar(9) CHARACTER SET latin1; varchar(9) COLLATE utf8mb4_bin; varchar(9) CHARACTER SET utf16
varchar(9) CHARACTER SET sjis; varchar(9) CHARACTER SET gbk; enum('a','B','10','3','é'); set('a','b','3','c')
"""
LITERALS = r"""
0; 1; -1; 5; 007; 99; 1999; 1.5; 9.95; -0.0; -0; +3; 1e3; 1E-2; 12345.678; .5; 16777217
0.1234567890123456789; 0x41; x'4142'; b'101'; b'1'; true; false; null; 20240105; 101112
'0'; '1'; '5'; '007'; ' 5'; '1.5'; '1e3'; '99'; '69'; '2024'; '0000'; ''; '-1'
'a'; 'A'; 'b'; 'B'; 'a,b'; 'b,a'; 'a,a'; 'ü'; 'é'; 'E'; 'a '; 'ab  '; 'it''s'; 'a\\b'; '\n'; 'a' 'b'
_utf8mb4'a'; _latin1'a'; N'a'; "a"; _binary'a'; '2024-01-05'; '2024-1-5'; '24-01-05'; '20240105'; '2024/01/05'
'2024-01-05 10:20:30'; '2024-01-05 10:20:30.5'; '2024-01-05T10:20:30'; '2024-01-05 10:20:30.125'
'2024-01-05 10:20:30+02:00'; '10:20:30'; '10:20'; '1:2:3'; '100:00:00'; '-10:20:30'; '1 10:20:30'
'10:20:30.25'; '10:20:30.255'; DATE'2024-01-05'; TIME'10:20:30'; TIMESTAMP'2024-01-05 10:20:30'
('a'); (5); (1.25); ('5'); (-'5'); ('[]'); ('{}'); ('{"b":1,"a":2}'); ('[1.0, 1e2]'); (null); (1 + 1)
"""


def listed(text: str) -> list[str]:
    return [one for line in text.split("\n") for one in line.split("; ") if one]


@pytest.fixture
def table(vitess_server: VitessServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"added{abs(hash(request.node.name)) % 10**8}"
    vitess_server.define("shop", f"create table {name} (id bigint primary key)", shard_by={name: "id"})
    yield name
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"drop table {name}")


class Added:
    """Adds columns to a table with a row, and compares what is known of this row with what a copy shows."""

    def __init__(
        self, server: VitessServer, table: str, definitions: Sequence[str], *, sql_mode: str = STRICT
    ) -> None:
        with (
            closing(source_of(server, table)) as source,
            server.connect("shop").cursor() as cursor,
            server.connect("shop:-80").cursor() as shard,
        ):
            shard.execute(f"insert into {table} (id) values (1)")
            cursor.execute(f"set sql_mode = '{sql_mode}'")
            start = source.start()
            source.seek_to(start)
            before = snapshot(source, table).to_pylist()
            self.definitions = [
                words
                for n, words in enumerate(definitions)
                if _runs(cursor, f"alter table {table} add c{n} {words}")
            ]
            statements = [
                r
                for r in captured_with_schema(source, start)
                if (r["origin"], r["schema_id"]) == ("shop/-80", DDL)
            ]
            source.seek_to(source.head())
            after = snapshot(source, table).to_pylist()
        name = f"shop.{table}"
        (self.first,) = (r for r in before if r["kind"] == "schema" and r["origin"] == "shop/-80")
        self.row = next(r for r in before if r["kind"] == "snapshot")
        newest, copied = (
            next(r for r in after if (r["kind"], r["origin"]) == (kind, "shop/-80"))
            for kind in ("schema", "snapshot")
        )
        self.shown = projected_rows(VitessCodec(name, TableHistory.of(name, [newest])), [copied])[0]
        fields = FieldEvent.FromString(newest["payload"])
        self.histories = [
            TableHistory.of(name, [self.first, statement, _only(newest, fields, number + 1)])
            for number, statement in enumerate(statements)
        ]
        assert len(statements) == len(self.definitions) == len(fields.fields) - 1

    def differing(self) -> list[tuple[str, Any, Any]]:
        """Return definition, derived and shown value of columns that differ without requiring a snapshot."""
        found = []
        for words, history in zip(self.definitions, self.histories, strict=True):
            column = history.newest.columns[1].name
            derived = projected_rows(VitessCodec(history.table, history), [self.row])[0]
            values = [_value(row, column) for row in (derived, self.shown)]
            if history.due is None and values[0] != values[1]:
                found.append((words, *values))
        return found

    def due(self) -> list[str]:
        """Return the definitions that require a snapshot."""
        return [words for words, one in zip(self.definitions, self.histories, strict=True) if one.due]


def _value(row: dict[str, Any], column: str) -> Any:
    """Return the value of a column, or what `_rest` has of it."""
    return json.loads(row["_rest"] or "{}").get(column, row[column])


def _runs(cursor: Any, statement: str) -> bool:
    try:
        cursor.execute(statement)
    except pymysql.MySQLError:
        return False
    return True


def _only(newest: dict[str, Any], fields: Any, number: int) -> dict[str, Any]:
    """Return the record of the first field and another one."""
    own = FieldEvent()
    own.CopyFrom(fields)
    del own.fields[:]
    own.fields.extend([fields.fields[0], fields.fields[number]])
    return {**newest, "schema_id": schema_id(own), "payload": own.SerializeToString()}


def test_defaults_in_other_forms_than_mysqls_require_a_snapshot(
    vitess_server: VitessServer, table: str
) -> None:
    added = Added(vitess_server, table, [*REPORTED, *PLAIN])

    assert added.definitions == [*REPORTED, *PLAIN]
    assert added.differing() == []
    assert added.due() == list(REPORTED)
    defaults = [one.steps[0][1] for one in added.histories[len(REPORTED) : -1]]
    assert all(isinstance(one, FromDefault) and one.text is not None for one in defaults)


def test_defaults_that_a_session_without_strict_mode_cuts_require_a_snapshot(
    vitess_server: VitessServer, table: str
) -> None:
    added = Added(vitess_server, table, LAX, sql_mode="")

    assert added.definitions == list(LAX)
    assert added.differing() == []
    assert added.due() == list(LAX)


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 250), *(pytest.param(seed, 1000, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_random_defaults_are_those_of_existing_rows_or_require_a_snapshot(
    vitess_server: VitessServer, table: str, seed: int, count: int
) -> None:
    chance, types, literals = random.Random(seed), listed(TYPES), listed(LITERALS)
    definitions = [
        f"{chance.choice(types)}{chance.choice(('', '', ' NOT NULL'))} DEFAULT {chance.choice(literals)}"
        for _ in range(count)
    ]

    added = Added(vitess_server, table, definitions)

    assert added.differing() == []
    assert 0 < len(added.due()) < len(added.definitions)
