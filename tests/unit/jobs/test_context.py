"""What a job refuses before it begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.spec import JobSpec


def context(tables: list[str], lake: dict[str, str]) -> JobContext:
    declared = {"name": "shop", "source": {"type": "cassandra"}, "lake": {"namespace": "n", **lake}}
    connector = Connector.from_dict(declared)
    nothing: Any = None
    found: Any = SimpleNamespace(table=lambda name, layout=None: SimpleNamespace(name=name))
    source: Any = SimpleNamespace(tables=lambda: tables)
    return JobContext(JobSpec("merge", declared, ""), connector, nothing, found, nothing, source)


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
        (["shop.changes"], {}, "the changes table of shop and shop.changes .* n.shop_changes"),
    ],
)
def test_tables_that_would_share_a_name_are_refused(
    tables: list[str], lake: dict[str, str], shared: str
) -> None:
    with pytest.raises(ConfigurationError, match=shared) as refused:
        context(tables, lake).tables()
    assert "another connector" in refused.value.remedy


def test_tables_with_names_of_their_own_are_taken() -> None:
    tables = ["k.t", "k.t__static_columns", "k.t_side", "a_b.d"]
    assert context(tables, {}).tables() == tables
