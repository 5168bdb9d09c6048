"""Topic names: Debezium's ``DefaultTopicNamingStrategy``, a pattern, or a custom class."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.logs import logger

log = logger(__name__)

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")
_MAX_LENGTH = 249


def topic_name(*parts: str, delimiter: str = ".") -> str:
    """Join the parts and replace invalid characters.

    Args:
        parts: Prefix, database, collection (or keyspace, table).
        delimiter: Delimiter of the parts.

    Returns:
        The name: each invalid UTF-16 unit is replaced with ``_``, truncated to 249 characters, never ``.`` or
        ``..``.
    """
    name = _NOT_ALLOWED.sub(lambda match: "_" * (2 if ord(match[0]) > 0xFFFF else 1), delimiter.join(parts))
    name = name[:_MAX_LENGTH]
    return name.replace(".", "_") if name in (".", "..") else name


class TopicNamingStrategy(Protocol):
    """Interface of custom topic naming strategies; instantiated without arguments, once per process."""

    def data_change_topic(self, prefix: str, database: str, table: str) -> str:
        """Return the topic of a table's or collection's events.

        Called for each batch, so it must be deterministic. Invalid characters are replaced with ``_``.

        Args:
            prefix: The connector's topic prefix.
            database: Database or keyspace.
            table: Collection or table.
        """
        ...


@cache
def load_strategy(class_path: str) -> TopicNamingStrategy:
    """Load a topic naming strategy.

    Args:
        class_path: ``package.module:Class``.

    Raises:
        ConfigurationError: The class can't be loaded, or lacks the method.
    """
    strategy: TopicNamingStrategy = load_custom("publish.topic_naming", class_path)()
    if not callable(getattr(strategy, "data_change_topic", None)):
        raise ConfigurationError(
            "publish.topic_naming is not a topic naming strategy",
            expected="a class with the method data_change_topic(prefix, database, table)",
            found=class_path,
        )
    return strategy


@dataclass(frozen=True)
class TopicNaming:
    """Topic names of a connector.

    Args:
        prefix: The connector's topic prefix.
        delimiter: Delimiter of the parts.
        pattern: Alternative to prefix, database and table with delimiters: text with ``{prefix}``,
            ``{database}`` and ``{table}``; empty for none.
        strategy: Custom strategy, which takes precedence.
    """

    prefix: str
    delimiter: str = "."
    pattern: str = ""
    strategy: TopicNamingStrategy | None = None

    def topic(self, database: str, table: str) -> str:
        """Return the topic of a table or collection.

        Raises:
            ConfigurationError: The strategy returned no name.
        """
        if self.strategy is not None:
            chosen = self.strategy.data_change_topic(self.prefix, database, table)
            if not isinstance(chosen, str) or not chosen:
                raise ConfigurationError(
                    f"publish.topic_naming returns no topic for {database}.{table}",
                    expected="a name",
                    found=repr(chosen),
                )
            return topic_name(chosen)
        if self.pattern:
            parts = {"prefix": self.prefix, "database": database, "table": table}
            return topic_name(re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], self.pattern))
        topic = topic_name(self.prefix, database, table, delimiter=self.delimiter)
        if topic != self.delimiter.join((self.prefix, database, table)):
            _warn_adjusted(topic, f"{database}.{table}")
        return topic

    def owner(self, database: str, table: str) -> str:
        """Return the owner of a table's topic: the table, unless the declaration lets several share it."""
        if self.strategy is not None:
            return self.topic(database, table)
        chosen = [("{database}", database), ("{table}", table)]
        return ".".join(part for name, part in chosen if not self.pattern or name in self.pattern)


@cache
def _warn_adjusted(topic: str, table: str) -> None:
    """Warn once that a topic name was adjusted, so that two tables might share it."""
    log.warning(
        "topic %s of %s has an adjusted name: its characters are not all valid in Kafka", topic, table
    )
