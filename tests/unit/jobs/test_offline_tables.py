from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.offline_tables import offline_source, offline_tables
from tests.unit.sources.cql.recordings import read_at_seconds, recorded_rows, recorded_schemas, recording

CASSANDRA = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})


# The last segment of "midway" was open when it was copied.
@pytest.mark.parametrize("variant", ["v7-plain", "v7-plain/midway", "v8-plain", "v7-lz4", "v7-zstd"])
def test_the_log_alone_adds_up_to_the_rows_that_the_server_shows(variant: str) -> None:
    folder = recording(variant)
    seen = {}
    left_out: list[str] = []
    for found in offline_tables(
        CASSANDRA,
        folder / "cdc_raw",
        folder / "schema.cql",
        now_seconds=read_at_seconds(folder),
        left_out=lambda place, reason: left_out.append(reason),
    ):
        texts = [text for batch in found.live.to_batches() for text in found.codec.to_json(batch)]
        # A counter's log holds contexts, not values; only snapshots bring them.
        if found.table != "shop_a.cnt":
            assert sorted(texts) == sorted(r["json"] for r in recorded_rows(folder, found.table)), found.table
        for batch in found.live.combine_chunks().to_batches():
            assert found.codec.project(batch).num_rows == batch.num_rows
        seen[found.table] = len(texts)
    tables = recorded_schemas(folder).tables.values()
    assert sorted(seen) == sorted(t.full_name for t in tables if t.cdc and not t.view)
    assert sum(seen.values()) > 200
    # Writes to the first life of the table reborn, whose id no schema knows any more.
    assert len(left_out) == 5
    assert all("unknown-table" in reason for reason in left_out)


def test_one_table_can_be_asked_for() -> None:
    folder = recording("v7-plain")
    (only,) = offline_tables(
        CASSANDRA,
        folder / "cdc_raw",
        folder / "schema.cql",
        now_seconds=read_at_seconds(folder),
        only="shop_a.twin",
    )
    assert (only.table, only.live.num_rows) == ("shop_a.twin", 29)


def test_segments_without_any_index_are_read_to_their_end(tmp_path: Path) -> None:
    folder = recording("v7-plain")
    for segment in (folder / "cdc_raw").glob("*.log.gz"):
        with gzip.open(segment) as packed, (tmp_path / segment.stem).open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    (only,) = offline_tables(
        CASSANDRA, tmp_path, folder / "schema.cql", now_seconds=read_at_seconds(folder), only="shop_a.twin"
    )
    assert only.live.num_rows == 29


def test_without_a_schema_it_says_what_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="--schema"):
        offline_source(CASSANDRA, "somewhere", "").tables()
    with pytest.raises(ConfigurationError, match="can't be read"):
        offline_source(CASSANDRA, "somewhere", "/no/such.cql").tables()
