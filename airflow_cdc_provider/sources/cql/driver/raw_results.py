"""Results of queries as raw bytes from the server: pages for kernels to parse.

It imports the driver, so import it where a session is opened, not at module level of modules for DAG files.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cassandra.cluster import ResponseFuture, Session
from cassandra.cqltypes import BytesType
from cassandra.protocol import PrepareMessage, ProtocolHandler, ResultMessage, read_short, read_string
from cassandra.query import PreparedStatement

from airflow_cdc_provider.exceptions import CorruptInput

_CUSTOM: Final = 0x00
_UDT: Final = 0x30
_TUPLE: Final = 0x31
_PARAMETERS: Final = {0x20: 1, 0x21: 2, 0x22: 1}
"""Types in the native protocol: list, map and set by their number of parameters."""


class RawPage(NamedTuple):
    """One page: ``rows`` times the values of all columns, each an int32 length (-1: null) and its bytes."""

    data: bytes
    rows: int

    def first(self) -> bytes:
        """Return the first value of the first row; it must not be null."""
        return self.data[4 : 4 + int.from_bytes(self.data[:4], "big")]

    def values(self, columns: int) -> list[list[bytes]]:
        """Return the values of each row; none may be null.

        Raises:
            CorruptInput: The page has fewer values.
        """
        if 4 * self.rows * columns > len(self.data):
            raise CorruptInput(f"{self.rows} rows can't be in {len(self.data)} bytes of a page")
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

    @classmethod
    def read_type(cls, f: Any, user_type_map: Any) -> type[BytesType]:
        """Skip a type: the driver can't make its own class of each name that CQL allows."""
        kind = read_short(f)
        if kind == _CUSTOM:
            read_string(f)
        if kind == _UDT:
            read_string(f)
            read_string(f)
        for _ in range(read_short(f) if kind in (_UDT, _TUPLE) else _PARAMETERS.get(kind, 0)):
            if kind == _UDT:
                read_string(f)
            cls.read_type(f, user_type_map)
        return BytesType


class RawProtocolHandler(ProtocolHandler):
    """Returns a session's results as :class:`RawPage`; its row factory must be :func:`raw_pages`."""

    message_types_by_opcode = {**ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}  # noqa: RUF012  # the driver's own form


def raw_pages(names: list[str], rows: list[RawPage]) -> list[RawPage]:
    """Return a result's rows unchanged."""
    return rows


def prepare(session: Session, query: str) -> PreparedStatement:
    """Prepare a query like the driver, whose own method makes classes of the types of columns.

    Other nodes prepare it when they first get it.
    """
    future = ResponseFuture(session, PrepareMessage(query), None, session.default_timeout)
    future._protocol_handler = RawProtocolHandler
    future.send_request()
    found = future.result().one()
    prepared = PreparedStatement.from_message(
        found.query_id,
        found.bind_metadata,
        found.pk_indexes,
        session.cluster.metadata,
        query,
        None,
        session._protocol_version,
        found.column_metadata,
        found.result_metadata_id,
        None,
    )
    session.cluster.add_prepared(found.query_id, prepared)
    return prepared
