"""Writes that are distinguishable by a number, in sections of segments."""

from __future__ import annotations

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.sources.cassandra.commit_log.tables import log_tables
from airflow_cdc_provider.sources.contract import ReadLimit
from tests.oracles.cassandra_read_path import Cell, Liveness, Row
from tests.unit.sources.cassandra.commit_logs import UpdateWriter, mutation
from tests.unit.sources.cassandra.recordings import of_kind
from tests.unit.sources.cassandra.updates import PLAIN

TABLES = log_tables([PLAIN], {PLAIN.full_name})
EVERYTHING = ReadLimit(bytes=1 << 40)


def write(number: int) -> bytes:
    """A mutation that is distinguishable from others."""
    row = Row(Liveness(number + 1), None, b"", (Cell(1, number + 1, number.to_bytes(4, "big")),))
    return mutation(UpdateWriter(PLAIN).write(number.to_bytes(4, "big"), [row]))


def sections_of(first: int, *counts: int) -> list[list[bytes]]:
    """Sections of some writes each, numbered on from ``first``."""
    found, number = [], first
    for count in counts:
        found.append([write(number + i) for i in range(count)])
        number += count
    return found


def keys(records: pa.Table) -> list[int]:
    """The numbers of the writes."""
    if records.num_rows == 0:
        return []
    return [int.from_bytes(key, "big") for key in of_kind(records, CHANGE)["key"].to_pylist()]
