from __future__ import annotations

from typing import Any

import bson
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.decoding.field_tally import tally_fields
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.schema_sample import SchemaSample, describe

FIELDS = st.text("abAB_é", min_size=1, max_size=3)
VALUES = st.recursive(st.just(1), lambda inner: st.dictionaries(FIELDS, inner, max_size=3), max_leaves=5)


def proposed(*documents: dict[str, Any]) -> dict[str, str]:
    data = as_bytes(b"".join(bson.encode(document) for document in documents))
    spans = split_documents(data)
    tally = tally_fields(data, spans.starts, spans.ends, depth=3)
    text = "\n".join(describe(SchemaSample("db.c", len(documents), True, tally.fields)))
    columns: dict[str, dict[str, str]] = yaml.safe_load(text)
    MongodbOptions(columns=columns)
    return columns["db.c"]


def test_columns_are_proposed_with_names_that_a_declaration_may_have() -> None:
    document = {"name": 1, "NAME": 2, "a": {"b": 3}, "a_b": 4, "document": 5, "_cdc": 6}
    assert list(proposed(document)) == [
        "name",
        "NAME__2",
        "a",
        "a_b",
        "a_b__2",
        "document__2",
        "x_cdc",
    ]


@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=4), max_size=3))
def test_proposed_columns_are_accepted(documents: list[dict[str, Any]]) -> None:
    paths = [text.partition(" ")[0] for text in proposed(*documents).values()]
    assert len(set(paths)) == len(paths) >= len({name for document in documents for name in document})
