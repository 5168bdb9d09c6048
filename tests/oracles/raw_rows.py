"""Rows of a SELECT as native bytes by column, past the driver's types."""

from __future__ import annotations

from typing import Any

from cassandra.protocol import ProtocolHandler, ResultMessage


class _Raw(ResultMessage):
    def recv_results_rows(
        self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, *_: Any
    ) -> None:
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        count = int.from_bytes(f.read(4), "big")
        self.parsed_rows = [[_value(f) for _ in columns] for _ in range(count)]


def _value(f: Any) -> bytes | None:
    length = int.from_bytes(f.read(4), "big", signed=True)
    return None if length < 0 else f.read(length)


class _RawHandler(ProtocolHandler):
    message_types_by_opcode = {**ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _Raw}  # noqa: RUF012  # the driver's own form


def raw_rows(session: Any, query: str) -> list[dict[str, bytes | None]]:
    """Read all rows that a query gives."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT

    own = session.cluster.connect()
    own.client_protocol_handler = _RawHandler
    profile = own.execution_profile_clone_update(
        EXEC_PROFILE_DEFAULT,
        row_factory=lambda names, rows: [dict(zip(names, row, strict=True)) for row in rows],
    )
    try:
        return list(own.execute(query, execution_profile=profile))
    finally:
        own.shutdown()
