"""Static columns: those of which a partition has one value, whatever the number of its rows."""

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
        """Return the columns that remain when static ones are shown elsewhere."""
        return pa.schema([field for field in columns if field.name not in self.names])

    def of_partitions(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of a table that has a row for each partition."""
        return pa.schema([columns.field(name) for name in (*self.key, *self.names)])
