from __future__ import annotations

import pytest

from airflow_cdc_provider.sources.vitess.ddl import (
    Action,
    Added,
    TableStatement,
    Unknown,
    read_statement,
    recorded_text,
)
from tests.unit.sources.vitess.alters import ALTERS


def actions(text: str, table: str = "t") -> tuple[Action, ...]:
    (found,) = read_statement(text)
    assert (found.table, found.kind) == (table, "alter")
    return found.actions


@pytest.mark.parametrize(
    ("words", "expected"),
    ALTERS,
)
def test_effects_of_an_alter_on_stored_values_are_parsed(words: str, expected: list[Action]) -> None:
    for start in ("alter table t", "ALTER TABLE `t`", "ALTER TABLE `shop`.t"):
        assert list(actions(f"{start} {words}")) == expected


@pytest.mark.parametrize(
    "words",
    [
        "DROP PRIMARY KEY, ADD PRIMARY KEY (a, b)",
        "ADD PRIMARY KEY (a)",
        "CONVERT TO CHARACTER SET utf8mb4",
        "TRUNCATE PARTITION p0",
        "DROP PARTITION p0",
        "DISCARD TABLESPACE",
        "ADD COLUMN (x int, y int)",
        "MODIFY a int GENERATED ALWAYS AS (b + 1) STORED",
        "ADD CHECK (a > 0), WHAT IS THIS",
        "what nobody reads",
    ],
)
def test_actions_that_may_change_values_are_unknown(words: str) -> None:
    found = actions(f"ALTER TABLE t {words}")
    assert any(isinstance(action, Unknown) for action in found)


def test_a_statement_that_no_parser_knows_still_names_its_table() -> None:
    assert isinstance(actions("ALTER ONLINE TABLE `a b`.`c``d` ADD x int", "c`d")[0], Unknown)
    assert isinstance(actions("alter table t add column v vector(3), add p point srid 4326")[0], Unknown)
    assert actions("/*!40000 ALTER TABLE `t` DISABLE KEYS */") == ()


def test_a_version_comment_in_a_text_is_text() -> None:
    assert actions("ALTER TABLE t ADD c varchar(30) DEFAULT '/*!80000 x */'") == (
        Added("c", "/*!80000 x */", quoted=True),
    )


def test_renamed_tables_are_unknown_on_both_sides() -> None:
    found = read_statement("RENAME TABLE `t` TO `_vt_hld_1`, shop.`_vt_vrp_2` TO shop.`t`")
    assert [one.table for one in found] == ["t", "_vt_hld_1", "_vt_vrp_2", "t"]
    assert all(isinstance(one.actions[0], Unknown) for one in found)
    for name in ("TO b", "AS b", "= `b`", "b"):
        found = read_statement(f"ALTER TABLE a RENAME {name}")
        assert {one.table for one in found if isinstance(one.actions[0], Unknown)} >= {"a", "b"}


def test_both_tables_of_an_exchanged_partition_are_unknown() -> None:
    for text in ("with table b", "WITH TABLE `shop`.`b` WITHOUT VALIDATION"):
        found = read_statement(f"alter table a exchange partition p0 {text}")
        assert [one.table for one in found] == ["a", "b"]
        assert all(isinstance(one.actions[0], Unknown) for one in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("truncate table empty_t", [TableStatement("empty_t", "truncate")]),
        ("TRUNCATE `shop`.`a b`", [TableStatement("a b", "truncate")]),
        ("drop table if exists a, shop.b", [TableStatement("a", "drop"), TableStatement("b", "drop")]),
        (
            "create table late (\n\tid bigint not null,\n\tprimary key (id)\n)",
            [TableStatement("late", "create")],
        ),
        ("create table t2 like t", [TableStatement("t2", "create")]),
        ("create index i on t (a)", []),
        ("DROP INDEX i ON t", []),
        ("CREATE DATABASE x", []),
        ("create view v as select 1 from dual", []),
        ("alter vitess_migration '123' cancel", []),
        ("ANALYZE TABLE t", []),
        ("OPTIMIZE TABLE t", []),
        ("", []),
        ("this is no SQL at all (", []),
    ],
)
def test_other_statements_are_parsed_by_their_effect_on_tables(
    text: str, expected: list[TableStatement]
) -> None:
    assert list(read_statement(text)) == expected


@pytest.mark.parametrize(
    ("start", "tables"),
    [
        ("ALTER TABLE `a``b` ADD c int COMMENT '", {"a`b"}),
        ("ALTER TABLE ks.t RENAME TO `to`, COMMENT '", {"t", "to"}),
        ("ALTER TABLE `é` COMMENT '", {"é"}),
        ("RENAME TABLE a TO b /* ", {"a", "b"}),
        ("/* ", set()),
        ("CREATE TABLE t (a int COMMENT '", set()),
        ("", set()),
    ],
)
def test_a_statement_of_any_size_is_recorded_with_its_tables(start: str, tables: set[str]) -> None:
    short = start.encode()
    assert recorded_text(short) == short
    recorded = recorded_text(short + b"x" * (16 << 20))
    assert len(recorded) < 200
    found = read_statement(recorded.decode())
    assert {one.table for one in found} == tables
    assert all(isinstance(action, Unknown) for one in found for action in one.actions)
    assert all(one.actions for one in found)
