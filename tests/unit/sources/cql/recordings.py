"""The recordings of a real Cassandra node, where they are beside the clone (shared/fixtures/cassandra)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import Schemas

VARIANTS = ("v7-plain", "v7-lz4", "v7-zstd", "v7-encrypted", "v8-plain")


def recording(variant: str) -> Path:
    """Return the folder of a variant, or skip the test."""
    for parent in Path(__file__).resolve().parents:
        folder = parent / "shared" / "fixtures" / "cassandra" / "A" / variant
        if folder.is_dir():
            return folder
    pytest.skip("shared/fixtures/cassandra is not beside this clone")


def recorded_schemas(folder: Path) -> Schemas:
    """Read the schema at the end of a recording."""
    return parse_cql((folder / "schema.cql").read_text())


def recorded_rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that the server showed of a table at the end."""
    with gzip.open(folder / "rows" / f"{table}.jsonl.gz", "rt") as lines:
        for line in lines:
            yield json.loads(line)
