"""Names of the fields that rows came with."""

from __future__ import annotations

import hashlib
from typing import Any, Final

DDL: Final = "ddl"
"""``schema_id`` of a record of kind ``schema`` that holds a statement."""

LINEAGE: Final = "lineage"
"""``schema_id`` of a record of kind ``schema`` that tells what shard a reshard made of which: JSON, ``{shard:
[ancestor, ...]}``."""

_ENUM: Final = 2074
_SET: Final = 2075


def schema_id(event: Any) -> str:
    """Name the fields of a ``FieldEvent``.

    Tables of two shards that are equal have one name: the database, which may be another one for each, is
    left out. Fields of ENUM and SET have another one where values come as numbers.

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
