"""Names of topics, as Debezium's ``DefaultTopicNamingStrategy`` makes them, or by a pattern of one's own."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache

log = logging.getLogger(__name__)

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
        topic = topic_name(self.prefix, database, table, delimiter=self.delimiter)
        if topic != self.delimiter.join((self.prefix, database, table)):
            _tell(topic, f"{database}.{table}")
        return topic


@cache
def _tell(topic: str, table: str) -> None:
    """Say once that a topic is not named as its table is: two tables might share it."""
    log.warning("topic %s is of %s, whose name no topic can have", topic, table)
