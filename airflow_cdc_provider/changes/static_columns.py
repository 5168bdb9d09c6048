"""Static columns: columns with one value per partition, whatever the number of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class StaticColumns:
    """Which columns of a table are static.

    Args:
        key: The partition key's columns, in order.
        names: The static columns; none if the table has none now.
    """

    key: tuple[str, ...]
    names: tuple[str, ...]

    def of_rows(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns without the static ones."""
        return pa.schema([field for field in columns if field.name not in self.names])

    def of_partitions(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of a table with one row per partition."""
        return pa.schema([columns.field(name) for name in (*self.key, *self.names)])
