from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, read_cell_row, write_cell_row
from airflow_cdc_provider.changes.cells import CELL_TOMBSTONE
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_prefix, state_payload
from tests.chance import examples

CREATE = """
CREATE TABLE k.t (p int PRIMARY KEY, a int, b text, s set<int>)
WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7;
"""
DROP_A = "ALTER TABLE k.t DROP a USING TIMESTAMP 5"
ADD_A = "ALTER TABLE k.t ADD a text"


def _table(*changes: str) -> TableSchema:
    return parse_cql(CREATE + ";".join(changes)).tables["k.t"]


def _ids(codec: CassandraCodec) -> dict[str, int]:
    return {c.name: c.id for c in codec.schema.regular}


def _follow(*tables: TableSchema) -> list[dict[str, int]]:
    """Return the ids that a table's columns have as it changes."""
    memory = None
    found = []
    for table in tables:
        codec = recall_codec(table, memory)
        memory = json.loads(json.dumps(codec.remember()))
        found.append(_ids(codec))
    return found


def test_columns_keep_their_ids_when_others_are_added_and_dropped() -> None:
    first, later = _follow(_table(), _table("ALTER TABLE k.t ADD aa int", DROP_A))
    assert (later["b"], later["s"]) == (first["b"], first["s"])
    assert later["aa"] > max(first.values())


def test_a_column_that_was_dropped_and_came_back_is_a_new_one() -> None:
    first, later, again = _follow(_table(), _table(DROP_A, ADD_A), _table(DROP_A, ADD_A))
    assert later["a"] > max(first.values())
    assert again == later


def test_ids_of_removed_columns_are_not_reused() -> None:
    drop = "ALTER TABLE k.t DROP s USING TIMESTAMP 5"
    first, _, _, later = _follow(
        _table(), _table(drop), _table(drop), _table(drop, "ALTER TABLE k.t ADD z int")
    )
    assert later["z"] > max(first.values())


@pytest.mark.parametrize("later", [("ALTER TABLE k.t ADD z int",), (DROP_A, ADD_A)])
def test_a_schema_from_before_the_last_merge_is_not_followed(later: tuple[str, ...]) -> None:
    """While the cluster doesn't answer, the history's may be older; the mirror would lose columns to it."""
    memory = recall_codec(_table(*later), None).remember()
    with pytest.raises(TransientError, match=r"k\.t is older than that of its mirror"):
        recall_codec(_table(), memory)
    assert recall_codec(_table(*later), memory).remember() == memory


def _recalled(changes: tuple[str, ...], memory: dict[str, Any] | None) -> CassandraCodec:
    return recall_codec(_table(*changes), memory)


def test_names_in_the_mirror_stay_when_others_come_and_go() -> None:
    added = ('ALTER TABLE k.t ADD "A" text', 'ALTER TABLE k.t ADD "a.x" int')
    first = _recalled((), None)
    second = _recalled(added, first.reserve(None))
    assert second.mirror_schema().names == ["p", "A__2", "a", "a_x", "b", "s"]
    reserved = second.reserve(first.remember())
    assert reserved is not None
    assert _recalled(added, reserved).drift.replaced == {"A__2", "a_x"}  # in the mirror's schema, perhaps
    memory = json.loads(json.dumps(second.remember()))
    third = _recalled((*added, DROP_A), memory)
    assert third.mirror_schema().names == ["p", "A__2", "a_x", "b", "s"]
    assert third.drift.replaced == {"a"}
    again = _recalled((*added, DROP_A, ADD_A), third.remember())
    assert again.mirror_schema().names == ["p", "A__2", "a", "a_x", "b", "s"]
    dropped = (*added, 'ALTER TABLE k.t DROP "A" USING TIMESTAMP 5')
    last = _recalled((*dropped, 'ALTER TABLE k.t ADD "A" text'), memory)
    assert last.drift.replaced == {"A__2"}
    assert last.mirror_schema().names[1] == "A__2"
    assert set(last.liveness_columns or ()) == {"a", "a_x", "b", "s"}


def test_a_key_column_that_is_renamed_to_another_columns_name_gives_way() -> None:
    first = _recalled((), None)
    renamed = _recalled(('ALTER TABLE k.t RENAME p TO "B"',), first.remember())
    assert renamed.mirror_schema().names == ["B__2", "a", "b", "s"]
    assert renamed.drift == replace(renamed.drift, keys=1, replaced=frozenset())
    assert _recalled(('ALTER TABLE k.t RENAME p TO "B"',), renamed.remember()).static_columns.key == ("B__2",)


def test_a_re_created_table_replaces_columns_under_their_names_in_the_mirror() -> None:
    old = _recalled(('ALTER TABLE k.t ADD "A" text',), None)
    new = recall_codec(replace(_table(), id="0" * 32), old.remember())
    assert new.drift.recreated
    assert old.mirror_schema().names == ["p", "A", "a__2", "b", "s"]
    assert new.drift.replaced == {"p", "a", "b", "s", "A", "a__2"}


def test_a_re_created_table_shares_no_id_with_the_old_one() -> None:
    old, new = _follow(_table(), replace(_table(), id="0" * 32))
    assert not set(old.values()) & set(new.values())


def test_the_re_read_of_a_row_skips_dropped_columns() -> None:
    """A state keeps the cells of a dropped column."""
    codec = recall_codec(_table(DROP_A), recall_codec(_table(), None).remember())
    ids = _ids(recall_codec(_table(), None))
    cells = tuple(Cell(ids[name], CELL_TOMBSTONE, 0, 7, 8, b"", b"") for name in ("a", "b"))
    payload = state_payload(codec.schema, write_cell_row(CellRow(0, cells=cells)))
    prefix = snapshot_prefix(["b"])
    assert payload.startswith(prefix)
    assert read_cell_row(payload[len(prefix) :]).cells == (cells[1]._replace(column=0),)


@pytest.mark.parametrize("rules", ["4.0", "3.11"])
def test_a_codec_travels_to_executors(rules: str) -> None:
    codec = recall_codec(_table(), None, rules)
    codec.mirror_schema()
    there = pickle.loads(pickle.dumps(codec))
    assert there == codec
    assert there.mirror_schema() == codec.mirror_schema()
    assert (there.model, there.table, there.rules) == ("cell", "k.t", rules)


def _killed(table: TableSchema, memory: dict[str, Any] | None) -> tuple[dict[str, int], dict[str, Any]]:
    """Start a merge and stop before its commit; return its column ids, and the mirror's memory then."""
    codec = recall_codec(table, memory)
    return _ids(codec), json.loads(json.dumps(codec.reserve(memory) or memory))


def test_ids_of_a_merge_that_was_killed_are_not_given_to_other_columns() -> None:
    """The tables next to the mirror have columns by these ids; ``aa`` sorts before ``z``."""
    add_z, add_aa = "ALTER TABLE k.t ADD z int", "ALTER TABLE k.t ADD aa int"
    memory = recall_codec(_table(), None).remember()
    killed, memory = _killed(_table(add_z), memory)
    later = recall_codec(_table(add_z, add_aa), memory)
    assert _ids(later)["z"] == killed["z"]
    assert _ids(later)["aa"] not in killed.values()
    assert "reserved" not in later.remember()


def test_ids_of_a_first_merge_that_was_killed_are_not_given_to_other_columns() -> None:
    killed, memory = _killed(_table(), None)
    later = recall_codec(_table("ALTER TABLE k.t ADD aa int"), memory)
    assert not later.drift.recreated
    assert _ids(later)["aa"] not in killed.values()
    assert {name: _ids(later)[name] for name in killed} == killed
    renewed = recall_codec(replace(_table(), id="0" * 32), memory)
    assert renewed.drift.recreated
    assert not set(_ids(renewed).values()) & set(killed.values())


def test_killing_merges_again_and_again_uses_up_no_ids() -> None:
    memory = recall_codec(_table(), None).remember()
    table = _table("ALTER TABLE k.t ADD z int")
    first, memory = _killed(table, memory)
    for _ in range(3):
        assert recall_codec(table, memory).reserve(memory) is None
        assert _killed(table, memory) == (first, memory)


NAMES = ("a", "b", "c")
MERGES = st.tuples(st.just("merge"), st.sampled_from(["reserved", "fitted", "committed"]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("toggle"), st.sampled_from(NAMES[:2])),
        MERGES,
        MERGES,
        st.tuples(st.just("renew"), st.sets(st.sampled_from(NAMES), min_size=1)),
    ),
    max_size=20,
)
AGAIN = [("toggle", "a"), ("toggle", "a")]


@settings(max_examples=examples(300))
@given(STEPS)
@example([("toggle", "a"), ("merge", "fitted"), *AGAIN, ("merge", "fitted")])
@example([("toggle", "a"), ("merge", "fitted"), *AGAIN, ("merge", "reserved"), ("merge", "fitted")])
@example([("merge", "fitted"), ("renew", {"b"}), ("merge", "fitted"), ("merge", "committed")])
@example(
    [
        *(("toggle", "a"), ("merge", "fitted"), ("toggle", "b"), ("merge", "reserved")),
        *(("toggle", "b"), ("merge", "fitted")),
    ]
)
def test_an_id_is_of_one_column_and_a_mirrors_column_of_one_too(steps: list[tuple[str, Any]]) -> None:
    """Whatever columns and tables become between merges that are killed before, between and after writes."""
    number = 1
    statements = _renewed(number, {"b"})
    identity = dict.fromkeys(("p", "b"), (number, 0))
    owners: dict[int, Any] = {}
    fitted: dict[str, Any] = {}
    memory = None
    for action, what in steps:
        number += 1
        if action == "toggle" and what not in identity:
            statements += f"ALTER TABLE k.t ADD {what} int;"
            identity[what] = (number, 0)
        elif action == "toggle":
            statements += f"ALTER TABLE k.t DROP {what} USING TIMESTAMP {number};"
            del identity[what]
        elif action == "renew":
            statements = _renewed(number, what)
            identity = dict.fromkeys(("p", *what), (number, 0))
        if action != "merge":
            continue
        table = parse_cql(statements).tables["k.t"]
        codec = recall_codec(table, memory)
        reserved = codec.reserve(memory)
        memory = memory if reserved is None else json.loads(json.dumps(reserved))
        if what == "reserved":
            continue
        stay = {n: i for n, i in fitted.items() if n in identity and n not in codec.drift.replaced}
        assert stay.items() <= identity.items(), "a column keeps the id of another one"
        fitted = dict(identity)
        for name, column_id in _ids(codec).items():
            assert owners.setdefault(column_id, identity[name]) == identity[name]
        if what == "committed":
            memory = json.loads(json.dumps(codec.remember()))


def _renewed(number: int, columns: set[str]) -> str:
    columns_text = ", ".join(f"{name} int" for name in ["p", *sorted(columns)])
    return f"CREATE TABLE k.t ({columns_text}, PRIMARY KEY (p)) WITH ID = {UUID(int=number)};"


def test_a_mirror_of_another_key_is_refused_with_what_to_do() -> None:
    """``DROP COMPACT STORAGE`` shows a clustering column that the table had all the time."""
    table_id = "id = 6d3a5a10-c68a-11f0-8de9-0242ac120002"
    before = parse_cql(f"CREATE TABLE k.t (k int PRIMARY KEY, v int) WITH COMPACT STORAGE AND {table_id}")
    after = parse_cql(
        f"CREATE TABLE k.t (k int, column1 text, v int static, PRIMARY KEY (k, column1)) WITH {table_id}"
    )
    memory = recall_codec(before.tables["k.t"], None).remember()
    with pytest.raises(ConfigurationError, match=r"expected k, found k, column1.*new snapshot"):
        recall_codec(after.tables["k.t"], memory)


def test_a_compact_table_of_keys_alone_has_a_hidden_column() -> None:
    text = "CREATE TABLE k.t (k int, c int, {}PRIMARY KEY (k, c)) WITH COMPACT STORAGE AND cdc = true"
    assert set(parse_cql(text.format("")).tables["k.t"].dropped) == {"value"}
    assert not parse_cql(text.format("v int, ")).tables["k.t"].dropped
    assert parse_cql(text.format("")).tables["k.t"].cdc
