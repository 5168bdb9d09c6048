"""Streamed JSON values: each is what MySQL shows, also with binary members (these broke before 24.0.4)."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from server_kit import VitessServer
from tests.integration.sources.vitess.projected import projected_rows
from tests.integration.sources.vitess.vitess_sources import captured_with_schema, source_of

pytestmark = pytest.mark.integration

PLAIN = (
    *(
        "1",
        "-7",
        "1.5",
        "0.1e0",
        "18446744073709551615",
        "true",
        "false",
        "null",
        "'text'",
        "'ü \"q\" \\\\ \n'",
        "''",
    ),
    *("cast(1.250 as decimal(5,3))", "cast('[]' as json)", "cast('{}' as json)", "cast('null' as json)"),
    *("date'2024-01-05'", "time'10:20:30.5'", "timestamp'2024-01-05 10:20:30'"),
)
BINARY = ("cast(x'00ff80' as binary)", "cast(x'' as binary)", "b'101'")


def expression(chance: random.Random, depth: int = 0) -> str:
    """Return an expression of a random JSON value; some have binary members."""
    kind = chance.random()
    if depth and (kind < 0.5 or depth > 3):
        return chance.choice(BINARY if chance.random() < 0.08 else PLAIN)
    members = [expression(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind < 0.7:
        return f"json_array({', '.join(members)})"
    named = [
        f"'{chance.choice(('k', 'kk', 'ü', 'Z', ''))}{number}', {one}" for number, one in enumerate(members)
    ]
    return f"json_object({', '.join(named)})"


def test_random_json_is_what_mysql_shows(vitess_server: VitessServer) -> None:
    chance = random.Random(5)
    vitess_server.define(
        "shop", "create table json1 (id bigint primary key, j json)", shard_by={"json1": "id"}
    )
    expressions = [*(f"cast({one} as json)" for one in BINARY), *(expression(chance) for _ in range(150))]
    with closing(source_of(vitess_server, "json1")) as source:
        start = source.start()
        with vitess_server.connect("shop:-80").cursor() as cursor:
            for number, one in enumerate(expressions):
                cursor.execute(f"insert into json1 (id, j) values ({number}, {one})")
            cursor.execute("select id, cast(j as char) from json1")
            shown = dict(cursor.fetchall())
        records = captured_with_schema(source, start)
    vitess_server.define("shop", "drop table json1")

    history = TableHistory.of("shop.json1", records)
    rows = projected_rows(VitessCodec("shop.json1", history), [r for r in records if r["kind"] == CHANGE])
    assert {row["id"]: row["j"] for row in rows} == shown
    assert history.reread_us == 0
