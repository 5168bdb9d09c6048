"""Recordings of a real Cassandra node, with the rows that the server showed at their end."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import Schemas

VARIANTS = ("v7-plain", "v8-plain")

_TESTS = Path(__file__).resolve().parents[3]


def recording(variant: str) -> Path:
    """Return the folder of a variant."""
    return _TESTS / "fixtures" / "cassandra" / "A" / variant


def recorded_schemas(folder: Path) -> Schemas:
    """Read the schema at the end of a recording."""
    return parse_cql((folder / "schema.cql").read_text())


def recorded_rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that the server showed of a table at the end."""
    with gzip.open(folder / "rows" / f"{table}.jsonl.gz", "rt") as lines:
        for line in lines:
            yield json.loads(line)


def read_at_seconds(folder: Path) -> int:
    """Return the second at which the server's rows were read."""
    return int(json.loads((folder / "rows" / "_index.json").read_text())["read_at_s"])
