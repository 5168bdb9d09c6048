"""The demo's lake, read without Spark: PyIceberg on the warehouse's files, DuckDB for SQL.

``python -m demo.lake "SELECT tier, count(*) FROM shop_orders GROUP BY tier"`` queries the mirrors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from demo.layout import Layout


def tables(warehouse: Path) -> dict[str, Path]:
    """Return the metadata file of each table, by its name without namespace."""
    found = {}
    for hint in sorted(warehouse.glob("*/*/metadata/version-hint.text")):
        version = hint.read_text().strip()
        found[hint.parent.parent.name] = hint.with_name(f"v{version}.metadata.json")
    return found


def read(warehouse: Path, name: str) -> pa.Table:
    """Read a table completely, without the package's own column."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(tables(warehouse)[name]))
    columns = tuple(field.name for field in table.schema().fields if field.name != "_cdc")
    return table.scan(selected_fields=columns).to_arrow()


def query(warehouse: Path, sql: str) -> str:
    """Run SQL on the mirrors and return its result as text."""
    import duckdb

    connection = duckdb.connect()
    for name in tables(warehouse):
        if name in sql:
            connection.register(name, read(warehouse, name))
    return str(connection.sql(sql))


if __name__ == "__main__":
    print(query(Layout().warehouse, sys.argv[1]))
