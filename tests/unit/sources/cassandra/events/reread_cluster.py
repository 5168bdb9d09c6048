"""A fake cluster from which rows are read again, and the recording that its table is of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.recordings import Recording
from tests.unit.sources.cassandra.events.datastax_recording import FOLDER, NOW_NS
from tests.unit.sources.cassandra.select_pages import select_row, snapshot_records

RECORDING = Recording(FOLDER / "cdc_raw", str(FOLDER / "schema.cql"), NOW_NS)
TABLE = "shop_e.clustered"


class Cluster:
    """Has one row of one table, and keeps what it was asked for.

    Args:
        once: A table is asked for once; else once per batch.
    """

    def __init__(self, *, once: bool = True) -> None:
        self.once = once
        self.asked: dict[str, list[bytes]] = {}
        self.away = False
        self.schemas: dict[str, TableSchema] = {}

    def read_again(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        if self.away:
            raise TransientError("the cluster doesn't answer")
        assert table not in self.asked or not self.once, "each table once"
        self.asked[table] = list(keys)
        if table == TABLE:
            numbers = {"p2": 1, "c1": 0, "st": 7}
            raw = {name: number.to_bytes(4, "big") for name, number in numbers.items()}
            raw |= {"p1": b"p", "c2": b"x", "v": b"now"}
            times = {"v": NOW_NS // 1000, "st": NOW_NS // 1000}
            read = snapshot_records(self.schemas[table], [select_row(self.schemas[table], raw, times, {})])
            yield read.filter(pc.is_in(read["key"], value_set=pa.array(keys, pa.binary())))
