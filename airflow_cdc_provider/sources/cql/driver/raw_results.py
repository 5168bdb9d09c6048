"""Results of queries as raw bytes from the server: pages for kernels to parse.

It imports the driver, so import it where a session is opened, not at module level of modules for DAG files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cassandra.protocol import ProtocolHandler, ResultMessage


class RawPage(NamedTuple):
    """One page: ``rows`` times the values of all columns, each an int32 length (-1: null) and its bytes."""

    data: bytes
    rows: int

    def first(self) -> bytes:
        """Return the first value of the first row; it must not be null."""
        return self.data[4 : 4 + int.from_bytes(self.data[:4], "big")]

    def values(self, columns: int) -> list[list[bytes]]:
        """Return the values of each row; none may be null."""
        found, at = [], 0
        for _ in range(self.rows):
            row = []
            for _ in range(columns):
                length = int.from_bytes(self.data[at : at + 4], "big")
                row.append(self.data[at + 4 : at + 4 + length])
                at += 4 + length
            found.append(row)
        return found


class _RawResult(ResultMessage):
    def recv_results_rows(
        self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, *_: Any
    ) -> None:
        """Read metadata like the driver, and return the rows unparsed."""
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata or []
        self.column_names = [c[2] for c in columns]
        self.column_types = [c[3] for c in columns]
        rows = int.from_bytes(f.read(4), "big")
        self.parsed_rows = [RawPage(f.read(), rows)]


class RawProtocolHandler(ProtocolHandler):
    """Returns a session's results as :class:`RawPage`; its row factory must be :func:`raw_pages`."""

    message_types_by_opcode = {**ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}  # noqa: RUF012  # the driver's own form


def raw_pages(names: list[str], rows: list[RawPage]) -> list[RawPage]:
    """Return a result's rows unchanged."""
    return rows
