"""Rows of recordings against what the server that was recorded showed, table by table and text by text."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import row_lines
from tests.unit.sources.cql.recordings import read_at_seconds, recorded_rows, recorded_schemas, recording

CASSANDRA = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})
LINE = re.compile(r'\{"table":("[^"]+"),"row":(.*)\}')


def shown_rows(source: Recording, skipped: SkippedRecords) -> dict[str, list[str]]:
    """Return the rows that a recording adds up to, by table."""
    shown: dict[str, list[str]] = defaultdict(list)
    for chunk in row_lines(CASSANDRA, source, skipped):
        for line in text_of(chunk).decode().split("\n")[:-1]:
            match = LINE.fullmatch(line)
            assert match
            shown[json.loads(match[1])].append(match[2])
    return shown


# The last segment of "midway" was open when it was copied.
@pytest.mark.parametrize("variant", ["v7-plain", "v7-plain/midway", "v8-plain", "v7-lz4", "v7-zstd"])
def test_the_log_alone_adds_up_to_the_rows_that_the_server_shows(variant: str) -> None:
    folder = recording(variant)
    skipped = SkippedRecords(strict=False)
    source = Recording(
        folder / "cdc_raw", str(folder / "schema.cql"), now_ns=read_at_seconds(folder) * 1_000_000_000
    )
    shown = shown_rows(source, skipped)
    tables = [t for t in recorded_schemas(folder).tables.values() if t.cdc and not t.view]
    for table in tables:
        wanted = sorted(row["json"] for row in recorded_rows(folder, table.full_name))
        # A counter's log holds contexts, not values; only snapshots bring them.
        assert sorted(shown.pop(table.full_name, [])) == ([] if table.counter else wanted), table.full_name
    assert not shown
    # Also of the table reborn, whose first life is known from the log alone, nothing is left out.
    assert skipped.undecodable == []


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08")
@pytest.mark.parametrize("variant", ["v7-plain", "v8-plain", "v7-lz4", "v7-zstd"])
def test_the_log_alone_has_the_schema_too(variant: str) -> None:
    folder = recording(variant)
    now_ns = read_at_seconds(folder) * 1_000_000_000
    skipped = SkippedRecords(strict=False)
    with_file = shown_rows(Recording(folder / "cdc_raw", str(folder / "schema.cql"), now_ns), skipped)
    from_log = shown_rows(Recording(folder / "cdc_raw", "", now_ns), skipped)
    assert len(from_log) > 10
    assert from_log == with_file
    assert skipped.undecodable == []


@pytest.mark.recorded
@pytest.mark.covers("CAS-LIM-02")
def test_three_nodes_copies_of_each_write_add_up_to_the_same_rows(tmp_path: Path) -> None:
    folder = recording("v7-plain")
    # One node has everything, one lacks the first segments, one the last: as after an outage.
    segments = sorted((folder / "cdc_raw").glob("*.log.gz"))
    for node, kept in (("node-a", segments), ("node-b", segments[2:]), ("node-c", segments[:-2])):
        (tmp_path / node).mkdir()
        for log in kept:
            shutil.copy(log, tmp_path / node)
            shutil.copy(log.with_name(log.name.replace(".log.gz", "_cdc.idx")), tmp_path / node)
    now_ns = read_at_seconds(folder) * 1_000_000_000
    schema = str(folder / "schema.cql")

    once = shown_rows(Recording(folder / "cdc_raw", schema, now_ns=now_ns), SkippedRecords(strict=False))
    thrice = shown_rows(Recording(tmp_path, schema, now_ns=now_ns), SkippedRecords(strict=False))

    # Three nodes' records of one TRUNCATE count as three: see the roadmap.
    (truncated,) = (table for table in once if table.startswith("shop_a.trunc_"))
    for rows in (once, thrice):
        rows.pop(truncated, None)
    assert len(once) > 10
    assert {table: sorted(rows) for table, rows in thrice.items()} == {
        table: sorted(rows) for table, rows in once.items()
    }
