"""Recordings of a real Cassandra node: those in tests/fixtures, others where shared/ is beside the clone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.schema import Schemas

VARIANTS = ("v7-plain", "v8-plain", "v7-lz4", "v7-zstd", "v7-encrypted")
KEPT_VARIANTS = VARIANTS[:2]
"""Variants whose rows are in tests/fixtures."""

_TESTS = Path(__file__).resolve().parents[3]


def recording(variant: str) -> Path:
    """Return the folder of a variant that has rows, or skip the test."""
    kept = _TESTS / "fixtures" / "cassandra" / "A" / variant
    beside = (p / "shared" / "fixtures" / "cassandra" / "A" / variant for p in _TESTS.parents)
    for folder in (kept, *beside):
        if (folder / "rows").is_dir():
            return folder
    pytest.skip(f"the recording {variant} is only in shared/fixtures, which is not beside this clone")


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
