"""What a job refuses before it begins."""

from __future__ import annotations

import re
from functools import partial
from operator import contains
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.tables import refused_tables, selected_tables
from tests.unit.jobs.runs import FakeSource, run_of


def tables_of(tables: list[str], lake: dict[str, Any], *mirrors: str) -> tuple[list[str], dict[str, str]]:
    declared = {"name": "shop", "source": {"type": "cassandra"}, "lake": {"namespace": "n", **lake}}
    source = FakeSource(*tables)
    owned = {table: SimpleNamespace(is_owned=partial(contains, mirrors, table)) for table in tables}
    run = run_of(Connector.from_dict(declared), source=source, mirrors=owned.__getitem__)
    refused = refused_tables(run.job, run.stores, source)
    return selected_tables(run.job, run.stores, source), {one.table: one.error for one in refused}


@pytest.mark.parametrize(
    ("tables", "lake", "shared"),
    [
        (["a_b.c", "a.b_c"], {}, "a_b.c and a.b_c would both be stored in n.a_b_c"),
        (["k.t", "k.t__tombstones"], {}, "k.t and k.t__tombstones would both be stored in n.k_t__tombstones"),
        (
            ["k.t__static_columns", "k.t"],
            {"static_columns": "table"},
            "k.t__static_columns and k.t .* n.k_t__static_columns",
        ),
        (
            ["k.T", "k.t"],
            {"catalog_options": {"type": "hive"}},
            "k.T and k.t would both be stored in n.k_t",
        ),
        (["shop.changes"], {}, "the changes table of shop and shop.changes .* n.shop_changes"),
    ],
)
def test_tables_that_would_share_a_name_are_refused_and_no_other(
    tables: list[str], lake: dict[str, Any], shared: str
) -> None:
    taken, refused = tables_of(["k.good", *tables], lake)
    assert taken == ["k.good"]
    assert set(refused) == set(tables)
    for text in refused.values():
        assert re.search(shared, text)
        assert "another connector" in text


@pytest.mark.parametrize(
    ("kept", "newcomers"),
    [
        ("a_b.c", ["a.b_c"]),
        ("a.b_c", ["a_b.c"]),
        ("k.t", ["k.t__tombstones"]),
        ("k.t__tombstones", ["k.t"]),
        ("a_b_.c", ["a.b__c", "a_b._c"]),
    ],
)
def test_a_table_that_has_its_mirror_keeps_it_whatever_is_created(kept: str, newcomers: list[str]) -> None:
    for tables in ([kept, *newcomers], [*newcomers, kept]):
        taken, refused = tables_of(["k.good", *tables], {}, "k.good", kept)
        assert taken == [one for one in ["k.good", *tables] if one in ("k.good", kept)]
        assert set(refused) == set(newcomers)


def test_no_mirror_of_a_table_is_kept_if_several_would_be() -> None:
    taken, refused = tables_of(["k.t", "k.t__tombstones"], {}, "k.t", "k.t__tombstones")
    assert (taken, set(refused)) == ([], {"k.t", "k.t__tombstones"})
    taken, refused = tables_of(["shop.changes"], {}, "shop.changes")
    assert (taken, set(refused)) == ([], {"shop.changes"})


def test_tables_with_names_of_their_own_are_taken() -> None:
    tables = ["k.t", "k.T", "k.t__static_columns", "k.t_side", "a_b.d"]
    assert tables_of(tables, {}) == (tables, {})
