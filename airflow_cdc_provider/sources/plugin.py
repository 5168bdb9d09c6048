"""What a source is to the rest of the package: one object that names its parts.

Every source has a module ``plugin`` with a :class:`SourcePlugin`, which :mod:`.registry` finds by the type in
declarations. Declarations are read when DAG files are parsed, so this module and those of plug-ins import
little: a plug-in imports the part that a method returns inside that method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.connector.publish.validation import EventValues
    from airflow_cdc_provider.sources.contract import Source
    from airflow_cdc_provider.sources.event_source import SourceEvents
    from airflow_cdc_provider.sources.recordings import Recordings


class SourceOptions:
    """Base class of a source's options: the section ``source`` of a declaration, without ``type``.

    A subclass is a frozen dataclass whose fields are made with :func:`airflow_cdc_provider.options.option`.
    """

    conn_id: str
    """Airflow connection of the database."""

    @property
    def strict(self) -> bool:
        """Whether a record that can't be decoded fails the job instead of being quarantined."""
        return False

    def validate(self, connector: Connector) -> None:
        """Validate combinations of these options with those of other sections.

        Args:
            connector: The whole declaration; its single options are valid and supported.

        Raises:
            ConfigurationError: Names the first problem.
        """


class ReadTopics(NamedTuple):
    """The topics that a source reads, of another connector that keeps running."""

    names: Sequence[str]
    """Names or patterns."""
    events: str
    """Description of their events: converters and envelope."""
    start: str
    """Where a new connector starts."""
    needs_registry: bool
    """Whether a schema registry has the schemas of their events."""


class SourcePlugin(ABC):
    """A kind of source.

    Attributes:
        name: Value of ``source.type`` in declarations.
        options: Class of the options.
        connection_type: Type of the Airflow connections that hold its addresses and credentials; empty for a
            source that needs none.
        hook: ``package.module:Class`` of the Airflow hook, a subclass of
            :class:`airflow_cdc_provider.hooks.source.CdcHook`; empty likewise.
        table_name: Form of table names, for help texts.
        supports: Options of other sections that only some sources support, and this one does
            (:mod:`airflow_cdc_provider.connector.limited_options`).
        event_values: Values of events in the default envelope: changed cells, documents or rows.
        event_headers: Whether events can have headers that name the connector.
        tombstones: Whether a tombstone follows each delete by default.
        event_version: Value of ``source.version`` in events: the release of the connector whose format is
            written.
        stored_offsets: ``package.module:Class`` of the conversion of other connectors' offsets, a subclass of
            :class:`~airflow_cdc_provider.migration.offsets.conversion.ConnectOffsets`; empty for none.
        docs_page: Name of the page in ``docs/``.
    """

    name: ClassVar[str]
    options: ClassVar[type[SourceOptions]]
    connection_type: ClassVar[str] = ""
    hook: ClassVar[str] = ""
    table_name: ClassVar[str] = "keyspace.table"
    supports: ClassVar[frozenset[str]] = frozenset()
    event_values: ClassVar[EventValues] = "rows"
    event_headers: ClassVar[bool] = True
    tombstones: ClassVar[bool] = True
    event_version: ClassVar[str] = "3.6.1.Final"
    stored_offsets: ClassVar[str] = ""
    docs_page: ClassVar[str]

    @abstractmethod
    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source.

        Args:
            connector: The declaration.
            connection: The Airflow connection's values; empty for offline input.

        Raises:
            ConfigurationError: The options or the connection are invalid.
        """

    def events(self) -> SourceEvents:
        """Return the builder of the source's events.

        Raises:
            ConfigurationError: The source has no events.
        """
        raise ConfigurationError(f"source {self.name} has no events to publish")

    def recordings(self) -> Recordings:
        """Return the readers of recordings: of native bytes in files.

        Raises:
            ConfigurationError: The source has no recordings.
        """
        raise ConfigurationError(f"source {self.name} has no recordings")

    def topics(self, connector: Connector) -> ReadTopics | None:
        """Return the topics that the source reads; None for a source that reads a database. Default: None."""
        return None

    def schema_changes_topic(self, connector: Connector) -> str:
        """Return the topic of schema changes."""
        from airflow_cdc_provider.events.topics import topic_name

        publish = connector.publish
        return topic_name(
            connector.topic_prefix, publish.schema_changes_topic, delimiter=publish.topic_delimiter
        )

    def offset_gauges(self, offset: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, str]]]:
        """Yield gauges of a run's offset: the metric's name after ``cdc.``, value and tags. Default: none."""
        return iter(())


Options = TypeVar("Options", bound=SourceOptions)


def options_of(connector: Connector, kind: type[Options]) -> Options:
    """Return the options of a connector's source as those of one kind of source.

    Raises:
        ConfigurationError: The connector has another source.
    """
    if not isinstance(connector.source, kind):
        raise ConfigurationError(
            f"connector {connector.name} has the wrong source",
            expected=f"options {kind.__name__}",
            found=f"source {connector.type}",
        )
    return connector.source
