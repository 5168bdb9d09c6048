"""Builders of VStreams: messages that VTGate would send for some transactions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_cdc_provider.sources.vitess.protocol import EVENT_TYPES, TYPES, VStreamResponse

NUMBERS = {name: number for number, name in TYPES.items()}
SERVER = "ef0f6879-e57f-11f1-9c08-02fc00000001"
PRIMARY, UNIQUE, NOT_NULL = 2, 4, 1

Row = Sequence[bytes | None] | None


def column(
    name: str, kind: str, sql: str = "", flags: int = 0, charset: int = 63, **more: int
) -> dict[str, Any]:
    """Describe a column as ``query.Field`` does."""
    return {
        "name": name,
        "type": NUMBERS[kind],
        "column_type": sql,
        "flags": flags,
        "charset": charset,
        **more,
    }


class Stream:
    """Collects events of one keyspace, a message for each.

    Args:
        keyspace: Its name.
        shards: The shards in VGTIDs.
    """

    def __init__(self, keyspace: str = "shop", shards: Sequence[str] = ("0",)) -> None:
        self.keyspace = keyspace
        self.gtids = dict.fromkeys(shards, "")
        self.messages: list[Any] = []
        self.seconds = 1_700_000_000
        self._commits = 0

    def fields(self, table: str, *columns: dict[str, Any], shard: str = "0", texts: bool = True) -> Stream:
        """Add the fields of a table."""
        event = self._event("FIELD", shard).field_event
        event.table_name, event.keyspace, event.shard = f"{self.keyspace}.{table}", self.keyspace, shard
        event.enum_set_string_values = texts
        for one in columns:
            event.fields.add(**one)
        return self

    def begin(self, shard: str = "0") -> Stream:
        """Begin a transaction."""
        self._event("BEGIN", shard)
        return self

    def row(self, table: str, before: Row = None, after: Row = None, shard: str = "0") -> Stream:
        """Change a row."""
        event = self._event("ROW", shard).row_event
        event.table_name, event.keyspace, event.shard = f"{self.keyspace}.{table}", self.keyspace, shard
        change = event.row_changes.add()
        for image, values in ((change.before, before), (change.after, after)):
            if values is not None:
                image.lengths.extend(-1 if value is None else len(value) for value in values)
                image.values = b"".join(value or b"" for value in values)
        return self

    def commit(self, shard: str = "0", gtid: str = "") -> Stream:
        """End a transaction, at a set of GTIDs that is the next one by default."""
        self._vgtid(shard, gtid)
        self._event("COMMIT", shard)
        return self

    def change(self, table: str, before: Row = None, after: Row = None, shard: str = "0") -> Stream:
        """Change a row in a transaction of its own."""
        return self.begin(shard).row(table, before, after, shard).commit(shard)

    def ddl(self, statement: str, shard: str = "0") -> Stream:
        """Run a statement."""
        self._vgtid(shard, "")
        self._event("DDL", shard).statement = statement
        return self

    def write(self, path: Path) -> Path:
        """Write the messages as a recording; return the path."""
        with path.open("wb") as file:
            for message in self.messages:
                data = message.SerializeToString()
                length = len(data)
                while length >= 0x80:
                    file.write(bytes([length & 0x7F | 0x80]))
                    length >>= 7
                file.write(bytes([length]) + data)
        return path

    def _vgtid(self, shard: str, gtid: str) -> None:
        self._commits += 1
        self.gtids[shard] = gtid or f"MySQL56/{SERVER}:1-{self._commits}"
        vgtid = self._event("VGTID", shard).vgtid
        for name, known in self.gtids.items():
            vgtid.shard_gtids.add(keyspace=self.keyspace, shard=name, gtid=known)

    def _event(self, kind: str, shard: str) -> Any:
        message = VStreamResponse()
        event = message.events.add(type=EVENT_TYPES[kind], keyspace=self.keyspace, shard=shard)
        if kind != "VGTID":
            event.timestamp = self.seconds
        self.messages.append(message)
        return event
