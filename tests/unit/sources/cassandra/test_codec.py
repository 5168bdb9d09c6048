from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import TableSchema

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


def test_columns_keep_their_ids_when_others_come_and_go() -> None:
    first, later = _follow(_table(), _table("ALTER TABLE k.t ADD aa int", DROP_A))
    assert (later["b"], later["s"]) == (first["b"], first["s"])
    assert later["aa"] > max(first.values())


def test_a_column_that_was_dropped_and_came_back_is_a_new_one() -> None:
    first, later, again = _follow(_table(), _table(DROP_A, ADD_A), _table(DROP_A, ADD_A))
    assert later["a"] > max(first.values())
    assert again == later


def test_ids_of_columns_that_are_gone_are_not_given_again() -> None:
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


def test_a_table_made_anew_shares_no_id_with_the_old_one() -> None:
    old, new = _follow(_table(), replace(_table(), id="0" * 32))
    assert not set(old.values()) & set(new.values())


@pytest.mark.parametrize("rules", ["4.0", "3.11"])
def test_a_codec_travels_to_executors(rules: str) -> None:
    codec = recall_codec(_table(), None, rules)
    codec.mirror_schema()
    there = pickle.loads(pickle.dumps(codec))
    assert there == codec
    assert there.mirror_schema() == codec.mirror_schema()
    assert (there.model, there.table, there.rules) == ("cell", "k.t", rules)
