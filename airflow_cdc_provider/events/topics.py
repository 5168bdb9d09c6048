"""Names of topics, as Debezium's ``DefaultTopicNamingStrategy`` makes them."""

from __future__ import annotations

import re

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")
_MAX_LENGTH = 249


def topic_name(*parts: str, delimiter: str = ".") -> str:
    """Join the parts and replace what Kafka doesn't allow.

    Args:
        parts: Prefix, database, collection (or keyspace, table).
        delimiter: What stands between them.

    Returns:
        The name: a ``_`` for each UTF-16 unit that is not allowed, cut at 249 characters, never ``.`` or
        ``..``.
    """
    name = _NOT_ALLOWED.sub(lambda match: "_" * (2 if ord(match[0]) > 0xFFFF else 1), delimiter.join(parts))
    name = name[:_MAX_LENGTH]
    return name.replace(".", "_") if name in (".", "..") else name
