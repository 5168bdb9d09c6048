"""Names of topics, as Debezium's ``DefaultTopicNamingStrategy`` makes them, or by a pattern of one's own."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


@dataclass(frozen=True)
class TopicNaming:
    """How the topics of a connector are named.

    Args:
        prefix: The connector's topic prefix.
        delimiter: What stands between the parts.
        pattern: Instead of prefix, database and table in a row: text with ``{prefix}``, ``{database}`` and
            ``{table}``; empty for none.
    """

    prefix: str
    delimiter: str = "."
    pattern: str = ""

    def topic(self, database: str, table: str) -> str:
        """Return the topic of a table or collection."""
        if self.pattern:
            parts = {"prefix": self.prefix, "database": database, "table": table}
            return topic_name(re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], self.pattern))
        return topic_name(self.prefix, database, table, delimiter=self.delimiter)
