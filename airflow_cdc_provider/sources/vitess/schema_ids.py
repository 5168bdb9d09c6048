"""Ids of table schemas: digests of the fields that VStream sends before rows."""

from __future__ import annotations

import hashlib
from typing import Any, Final

DDL: Final = "ddl"
"""``schema_id`` of a record of kind ``schema`` that contains a DDL statement."""

LINEAGE: Final = "lineage"
"""``schema_id`` of a record of kind ``schema`` that contains the ancestors of shards created by a reshard:
JSON, ``{shard: [ancestor, ...]}``."""

REREAD: Final = "reread"
"""``schema_id`` of a record of kind ``schema`` that requires a snapshot, because values of a change arrived
broken. The payload is the reason."""

_ENUM: Final = 2074
_SET: Final = 2075


def schema_id(event: Any) -> str:
    """Return the id of the fields of a ``FieldEvent``.

    Equal tables of different shards have the same id: the database, which may differ, isn't part of it.
    Fields of ENUM and SET have a different id if the values are sent as numbers.

    Returns:
        BLAKE2b digest of 16 bytes, in hexadecimal.
    """
    digest = hashlib.blake2b(digest_size=16)
    for field in event.fields:
        named = type(field)()
        named.CopyFrom(field)
        named.ClearField("database")
        message = named.SerializeToString(deterministic=True)
        digest.update(len(message).to_bytes(4, "little") + message)
    if not event.enum_set_string_values and any(field.type in (_ENUM, _SET) for field in event.fields):
        digest.update(b"numbers")
    return digest.hexdigest()
