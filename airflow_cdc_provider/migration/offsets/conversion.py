"""Conversion of offsets stored by other connectors, for ``airflow cdc offsets import`` and ``export``.

These are Debezium's connectors, and ScyllaDB's, which is built on Debezium.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.registry import source_names, source_plugin

OpenSource = Callable[[], AbstractContextManager[Any]]
"""Connects to the source: returns a context manager of its client or session."""


@dataclass(frozen=True)
class OffsetFile:
    """A file with stored offsets.

    Args:
        content: Content of the file.
        allow_invalidation: MongoDB: whether offsets per shard may be discarded in favor of the oldest's time.
        host_id: Cassandra: host ID of the node that the file belongs to.
    """

    content: bytes
    allow_invalidation: bool = False
    host_id: str = ""


@dataclass(frozen=True)
class ImportedOffset:
    """An offset converted from another connector's.

    Args:
        offset: Offset of the connector; None: capture starts over.
        remarks: Notes for the user, one sentence each.
        partial: Whether other origins of a stored offset stay as they are.
    """

    offset: dict[str, Any] | None
    remarks: tuple[str, ...] = ()
    partial: bool = False


class ConnectOffsets(ABC):
    """Conversion of a connector's offsets.

    Args:
        connector: The connector declaration.
        open_source: Connects to its source; called only if a conversion needs the source's topology.
    """

    def __init__(self, connector: Connector, open_source: OpenSource) -> None:
        self.connector = connector
        self.open_source = open_source

    @staticmethod
    @abstractmethod
    def recognizes(content: bytes) -> bool:
        """Return whether a file was written by the other connector rather than by this package."""

    @abstractmethod
    def imported(self, file: OffsetFile) -> ImportedOffset:
        """Convert a recognized file.

        Raises:
            ConfigurationError: The file has no offset of this connector, or one that capture can't resume
                from.
        """

    def exported(self, offset: Mapping[str, Any]) -> str:
        """Convert an offset to the body of Kafka Connect's ``PATCH /connectors/NAME/offsets``.

        Raises:
            ConfigurationError: The source doesn't support it, or there is no position yet.
        """
        raise self._not_exportable()

    def moved_to_generation(self, content: bytes) -> str:
        """Convert offsets of tasks to the generation in the declaration; snapshots in progress are kept.

        Raises:
            ConfigurationError: The source has no such offsets, or they don't match the declaration's options.
        """
        raise self._not_exportable()

    def _not_exportable(self) -> ConfigurationError:
        return ConfigurationError(
            "offsets can be exported only for Vitess and ScyllaDB",
            expected="a connector of type vitess; or scylla, without --moved-from",
            found=self.connector.type,
        )


class _NoOffsets(ConnectOffsets):
    """For sources of which no other connector stores offsets."""

    @staticmethod
    def recognizes(content: bytes) -> bool:
        return False

    def imported(self, file: OffsetFile) -> ImportedOffset:
        raise ConfigurationError(
            "there are no offsets of other connectors to import",
            expected=f"a connector of type {', '.join(filter(_conversion, source_names()))}",
            found=self.connector.type,
        )


def connect_offsets(connector: Connector, open_source: OpenSource) -> ConnectOffsets:
    """Return the conversion for a connector's source."""
    if not (path := _conversion(connector.type)):
        return _NoOffsets(connector, open_source)
    conversion: Callable[..., ConnectOffsets] = load_custom("the conversion of offsets", path)
    return conversion(connector, open_source)


def _conversion(source: str) -> str:
    return source_plugin(source).stored_offsets
