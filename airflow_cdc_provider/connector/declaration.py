r"""The connector declaration: load it from YAML or plain data, validate it, write it back.

Example::

    connector = Connector.from_dict(
        {
            "name": "shop",
            "source": {"type": "cassandra", "conn_id": "cassandra_shop", "cdc_raw": "/landing/shop"},
            "tables": ["shop\\..*"],
            "lake": {"catalog": "lake", "namespace": "shop"},
        }
    )
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Final, Literal

from airflow_cdc_provider import __version__
from airflow_cdc_provider.connector.limited_options import require_supported
from airflow_cdc_provider.connector.notify import NotificationOptions
from airflow_cdc_provider.connector.publish.options import PublishOptions
from airflow_cdc_provider.connector.publish.validation import (
    validate_publish_options,
    validate_static_columns,
)
from airflow_cdc_provider.connector.signal_options import (
    SignalOptions,
    validate_signal_topic,
    validate_signals,
)
from airflow_cdc_provider.connector.snapshot_options import (
    EVERY_TABLE,
    OnLostPosition,
    SnapshotOptions,
    invalid_pattern,
)
from airflow_cdc_provider.connector.snapshotter import load_snapshotter
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.lake.layout import STATIC_COLUMNS_SUFFIX, TOMBSTONES_SUFFIX, table_name
from airflow_cdc_provider.masking import remember_names
from airflow_cdc_provider.options import (
    check_option,
    from_environment,
    literal_secrets,
    option,
    parse,
    to_plain,
    value_of,
    without_environment,
)
from airflow_cdc_provider.patterns import matches_any, selects
from airflow_cdc_provider.plain_data import require_usable
from airflow_cdc_provider.sources.plugin import SourceOptions
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.yaml_file import read_yaml

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_]{1,100}")
_TAG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_TAG_VALUE = re.compile(r"[^\s,=|#]{1,200}")
_OWN_TAGS: Final = frozenset(
    {
        "connector",
        "source",
        "table",
        "origin",
        "host",
        "stage",
        "part",
        "why",
        "type",
        "aggregate",
        "context",
        "server",
        "task",
    }
)


def _name(value: str) -> str:
    return "" if _NAME.fullmatch(value) else "letters, digits, _ . and -, at most 100"


def _identifier(value: str) -> str:
    return "" if not value or _IDENTIFIER.fullmatch(value) else "letters, digits and _"


def _tags(values: Mapping[str, str]) -> str:
    """Check tags against the limits of the StatsD protocols."""
    for name, value in values.items():
        if name in _OWN_TAGS:
            return f"names other than the reserved tags {', '.join(sorted(_OWN_TAGS))}"
        if not _TAG_NAME.fullmatch(name):
            return f"names of letters, digits, _ . and -, not starting with a digit ({name!r})"
        if not _TAG_VALUE.fullmatch(value):
            return f"values of 1 to 200 characters without space , = | # ({name}: {value!r})"
    return ""


@dataclass(frozen=True)
class GuardrailOptions:
    """A limit against patterns that select more tables than intended."""

    max_tables: int = option("Maximum number of captured tables; 0: no limit", 0, minimum=0)
    action: Literal["warn", "fail"] = option(
        "What to do when the limit is exceeded: report a finding, or fail the run", "warn"
    )


@dataclass(frozen=True)
class MergeOptions:
    """When pending changes are merged into mirrors: a trade-off of cost and freshness."""

    min_pending_ratio: float = option(
        "Merge a table when the ratio of pending changes to rows reaches this value; 0 merges in every run",
        0.0,
        minimum=0.0,
    )
    freshness_seconds: float = option(
        "Merge at the latest when the oldest pending change reaches this age", 3600.0, minimum=0
    )


@dataclass(frozen=True)
class LakeOptions:
    """Location and layout of mirrors and the changes table."""

    format: Literal["iceberg"] = option("Table format", "iceberg")
    catalog: str = option("Spark catalog", "lake", check=_identifier)
    namespace: str = option("Namespace of the mirrors; default: the connector's name", "", check=_identifier)
    catalog_options: Mapping[str, str] = option(
        "spark.sql.catalog.<catalog>.* properties (type, warehouse, uri ...) of a catalog that the Spark "
        "configuration doesn't define; secrets preferably as ${env:NAME} or ${file:PATH}, which the job's "
        "driver resolves",
        {},
        secret=True,
    )
    single_writer: bool = option(
        "No two jobs ever write to the lake at once: allows a catalog of type hadoop on an object store, "
        "where two writers lose data",
        False,
    )
    format_version: Literal[2, 3] = option("Iceberg format version; version 2 is readable by most engines", 2)
    retention_seconds: int = option(
        "Retention of merged batches and old Iceberg snapshots", 7 * 86_400, minimum=0
    )
    tombstone_retention_seconds: int = option(
        "Retention of tombstones; changes must not arrive later than this", 10 * 86_400, minimum=0
    )
    static_columns: Literal["rows", "table"] = option(
        "Cassandra: location of static columns. rows: in each row of the partition, as in SELECT *; "
        "table: once per partition, in the table <mirror>__static_columns",
        "rows",
    )
    merge: MergeOptions = option("When pending changes are merged", MergeOptions)


@dataclass(frozen=True)
class Connector:
    """A connector declaration.

    Args:
        name: Name of the connector; also the default topic prefix and namespace.
        type: Type of the source.
        source: Options of the source.
        tables: Anchored regular expressions on ``keyspace.table`` or ``database.collection``. A materialized
            view of Cassandra is selected only by its full name.
        exclude_tables: Anchored regular expressions of tables to exclude.
        snapshot: Options of snapshots.
        lake: Options of mirrors and the changes table.
        publish: Options of published events.
        guardrail: Limit of captured tables.
        notifications: Channels for snapshot notifications.
        metric_tags: Additional tags of all metrics.
        lag_statistics: Whether captures emit lag percentiles.
        signals: Channels that accept signals.
    """

    name: str
    type: str
    source: SourceOptions
    tables: tuple[str, ...] = EVERY_TABLE
    exclude_tables: tuple[str, ...] = ()
    snapshot: SnapshotOptions = field(default_factory=SnapshotOptions)
    lake: LakeOptions = LakeOptions()
    publish: PublishOptions = field(default_factory=PublishOptions)
    guardrail: GuardrailOptions = GuardrailOptions()
    notifications: NotificationOptions = field(default_factory=NotificationOptions)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    lag_statistics: bool = True
    signals: SignalOptions = field(default_factory=SignalOptions)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Connector:
        """Validate plain data and build the connector.

        Raises:
            ConfigurationError: Names each invalid option, the value found and what was expected.
        """
        require_usable(values, "the declaration")
        try:
            return cls._from_dict(values)
        except ConfigurationError as error:
            raise without_environment(error, values) from None

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Connector:
        problems: list[ConfigurationError] = []
        try:
            top = parse(_Declaration, values)
        except ConfigurationError as error:
            given = values.get("source") if isinstance(values, Mapping) else None
            if not isinstance(given, Mapping):
                raise
            problems.append(error)
            top = _Declaration("", given)
        source = dict(top.source)
        kind: Any = from_environment(str, source.pop("type", None), "source.type")
        try:
            plugin = source_plugin(str(kind))
            options = parse(plugin.options, source, "source")
        except ConfigurationError as error:
            problems.append(error)
        if problems:
            raise joined(problems)
        require_supported(kind, plugin.supports, top)
        validate_publish_options(top.publish, plugin.event_values)
        validate_static_columns(top.publish, top.lake.static_columns)
        validate_signals(top.signals, top.snapshot.incremental)
        validate_signal_topic(top.signals, top.publish.kafka.connection)
        connector = cls(
            name=top.name,
            type=kind,
            source=options,
            tables=top.tables,
            exclude_tables=top.exclude_tables,
            snapshot=top.snapshot,
            lake=top.lake,
            publish=top.publish,
            guardrail=top.guardrail,
            notifications=top.notifications,
            metric_tags=top.metric_tags,
            lag_statistics=top.lag_statistics,
            signals=top.signals,
        )
        options.validate(connector)
        remember_names(connector._names())
        return connector

    def _names(self) -> set[str]:
        """Return the names in the declaration, which are in all texts."""
        names = [self.name, self.lake.catalog, self.namespace, self.topic_prefix, *self.tables]
        names.append(getattr(self.source, "keyspace", ""))
        names += getattr(self.source, "topics", ())
        return {*names, *(part for one in names for part in re.split(r"\W+", one))}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_dict` reads back to an equal connector."""
        plain = to_plain(self)
        kind = plain.pop("type")
        plain["source"] = {"type": kind, **plain.get("source", {})}
        return dict(plain)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of all metrics of the connector."""
        return {**self.metric_tags, "connector": self.name, "source": self.type}

    def split_secrets(self) -> tuple[dict[str, Any], list[tuple[tuple[Any, ...], Any]]]:
        """Return plain data for a job's spec, without secrets, and these for its connection.

        Returns:
            What :meth:`from_dict` reads back; and each secret that is given literally, after its path there.
        """
        plain = self.to_dict()
        secrets = list(literal_secrets(self))
        for path, _ in secrets:
            del reduce(getitem, path[:-1], plain)[path[-1]]
        return plain, secrets

    @classmethod
    def with_secrets(
        cls, plain: Mapping[str, Any], secrets: Sequence[tuple[Sequence[Any], Any]]
    ) -> Connector:
        """Return the connector whose :meth:`split_secrets` these are.

        Raises:
            ConfigurationError: As of :meth:`from_dict`.
        """
        whole = deepcopy(dict(plain))
        for path, secret in secrets:
            reduce(getitem, path[:-1], whole)[path[-1]] = secret
        return cls.from_dict(whole)

    @property
    def namespace(self) -> str:
        """Namespace of the mirrors."""
        return self.lake.namespace or re.sub(r"[^A-Za-z0-9_]", "_", self.name)

    @property
    def changes_table(self) -> str:
        """Name of the changes table inside the catalog."""
        return f"{self._own_tables}_changes"

    @property
    def quarantine_table(self) -> str:
        """Name of the table of quarantined changes, which could not be decoded."""
        return f"{self._own_tables}_quarantine"

    @property
    def dead_letters_table(self) -> str:
        """Name of the dead-letter table of records that could not be published."""
        return f"{self._own_tables}_dead_letters"

    @property
    def published_table(self) -> str:
        """Name of the table with the publishing position of Pulsar."""
        return f"{self._own_tables}_published"

    @property
    def notifications_table(self) -> str:
        """Name of the table of notifications, written by channel ``table``."""
        return f"{self._own_tables}_notifications"

    @property
    def _own_tables(self) -> str:
        return f"{self.namespace}.{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}"

    def mirror_table(self, table: str) -> str:
        """Return the name of a source table's mirror inside the catalog: ``<namespace>.<keyspace>_<table>``.

        Characters that catalogs may reject are escaped as ``_x<hex>_``; a name of over 255 characters ends
        with a digest. Jobs leave out tables whose mirrors would have the same name (``a_b.c`` and ``a.b_c``;
        ``k.T`` and ``k.t`` in a declared catalog of type ``hive`` or ``glue``, which lower names), unless one
        of them has it already, and report them.
        """
        database, _, name = table.partition(".")
        return table_name(f"{self.namespace}.{_safe(database)}_{_safe(name)}")

    def shared_names(
        self, tables: Sequence[str], has_mirror: Callable[[str], bool] = lambda table: False
    ) -> dict[str, ConfigurationError]:
        """Return the tables whose mirrors, or tables next to them, have the name of another lake table.

        Args:
            tables: All tables of the connector.
            has_mirror: Returns whether the mirror of a table exists and is its own: such a table keeps it.
        """
        lowered = self.lake.catalog_options.get("type") in ("hive", "glue")

        def stored(name: str) -> str:
            return name.lower() if lowered else name

        owners = {
            self.changes_table: f"the changes table of {self.name}",
            self.quarantine_table: f"the quarantine of {self.name}",
            self.notifications_table: f"the notifications of {self.name}",
            self.published_table: f"the published positions of {self.name}",
            self.dead_letters_table: f"the dead letters of {self.name}",
        }
        owners = {stored(name): owner for name, owner in owners.items()}
        suffixes = [
            "",
            TOMBSTONES_SUFFIX,
            *([STATIC_COLUMNS_SUFFIX] if self.lake.static_columns == "table" else []),
        ]
        found: dict[str, ConfigurationError] = {}
        for table in tables:
            for name in (stored(table_name(self.mirror_table(table), suffix)) for suffix in suffixes):
                if (owner := owners.setdefault(name, table)) != table:
                    error = ConfigurationError(
                        f"{owner} and {table} would both be stored in {name}",
                        expected="a distinct name for each",
                        remedy="capture one of them with another connector that has another lake.namespace",
                    )
                    kept = [one for one in (owner, table) if owner in tables and has_mirror(one)]
                    found |= {one: error for one in (owner, table) if kept != [one]}
        return {table: found[table] for table in tables if table in found}

    def lost_position_action(self, *, hole: bool) -> OnLostPosition:
        """Return what a run does when the source no longer has the changes after the stored offset.

        Args:
            hole: Whether the source has later changes, so that only some changes are lost.

        Returns:
            The effective ``snapshot.on_lost_position``; never ``auto``.
        """
        chosen = self.snapshot.on_lost_position
        if chosen != "auto":
            return chosen
        if self.snapshot.mode in ("when_needed", "always"):
            return "snapshot"
        if self.snapshot.mode == "custom":
            snapshotter = load_snapshotter(self.snapshot.custom, self.snapshot.custom_settings)
            return "snapshot" if snapshotter.snapshot_on_data_error() else "fail"
        return "fail_once" if hole else "fail"

    def guardrail_message(self, tables: Sequence[str]) -> str:
        """Return a message if more tables are captured than the guardrail allows, else an empty string."""
        limit = self.guardrail.max_tables
        if not limit or len(tables) <= limit:
            return ""
        return f"{len(tables)} tables are captured, and guardrail.max_tables is {limit}"

    @property
    def topic_prefix(self) -> str:
        """Prefix of topics."""
        return self.publish.topic_prefix or self.name

    @property
    def event_version(self) -> str:
        """Value of ``source.version`` in events."""
        own = __version__ if self.publish.envelope == "datastax-cells" else ""
        return self.publish.version or own or source_plugin(self.type).event_version

    @property
    def tombstones(self) -> bool:
        """Whether a tombstone follows each delete."""
        publish = self.publish
        if publish.tombstones is not None:
            return publish.tombstones
        return source_plugin(self.type).tombstones or publish.envelope == "datastax-cells"

    def unmatched(self, tables: Sequence[str]) -> list[str]:
        """Return a message for each pattern in ``tables`` that none of the captured tables matches."""
        patterns = [p for p in self.tables if not any(matches_any([p], table) for table in tables)]
        return [f"no table that can be captured matches {pattern} in tables" for pattern in patterns]

    def names(self, table: str) -> bool:
        """Return whether one of the patterns is this table's literal name, with dots escaped or not."""
        return any(re.sub(r"\\(\W)", r"\1", pattern) == table for pattern in self.tables)

    def selects(self, table: str) -> bool:
        """Return whether a table is captured."""
        return selects(self.tables, self.exclude_tables, table)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", lambda match: f"_x{ord(match.group()):x}_", name)


@dataclass(frozen=True)
class _Declaration:
    name: str = option("Name of the connector", check=_name)
    source: Mapping[str, object] = option("Type and options of the source")
    tables: tuple[str, ...] = option(
        "Anchored regular expressions of tables to capture; materialized views of Cassandra only by full "
        "name",
        EVERY_TABLE,
        check=invalid_pattern,
    )
    exclude_tables: tuple[str, ...] = option(
        "Anchored regular expressions of tables to exclude", (), check=invalid_pattern
    )
    snapshot: SnapshotOptions = option("Options of snapshots", SnapshotOptions)
    lake: LakeOptions = option("Options of mirrors and the changes table", LakeOptions)
    publish: PublishOptions = option("Options of published events", PublishOptions)
    guardrail: GuardrailOptions = option("Limit of captured tables", GuardrailOptions)
    notifications: NotificationOptions = option("Channels for snapshot notifications", NotificationOptions)
    metric_tags: Mapping[str, str] = option(
        "Additional tags of all metrics of the connector", {}, check=_tags
    )
    lag_statistics: bool = option(
        "Emit minimum, mean, maximum and percentiles of the time from a change to its capture, per run", True
    )
    signals: SignalOptions = option("Channels that accept signals", SignalOptions)


def load_connector(path: str | Path) -> Connector:
    """Load a declaration from a YAML file.

    Raises:
        ConfigurationError: The file is missing, not valid YAML, or has invalid options, which the message
            names.
    """
    try:
        values = read_yaml(path)
    except FileNotFoundError as error:
        raise ConfigurationError(f"connector file {path} does not exist") from error
    if not isinstance(values, Mapping):  # it may be any file: no error has its content
        raise ConfigurationError(f"{path} has no declaration", expected="a mapping of options in YAML")
    return Connector.from_dict(values)


ConnectorLike = Connector | Mapping[str, Any] | str
"""A connector, its declaration as a mapping or the JSON of one, or the path of its YAML file."""


def to_connector(declaration: ConnectorLike) -> Connector:
    """Return the connector from any of the accepted forms.

    Raises:
        ConfigurationError: The declaration is invalid; the message names the option.
    """
    if isinstance(declaration, Connector):
        return declaration
    if not isinstance(declaration, str):
        return Connector.from_dict(declaration)
    if declaration.lstrip().startswith("{"):
        return Connector.from_dict(value_of(declaration))
    return load_connector(declaration)


def check_declared(kind: str, path: str, value: object) -> None:
    """Check a value for one option of connectors of a source, whatever the others are.

    Args:
        kind: Type of the source.
        path: Dotted path of the option.
        value: The value in plain data.

    Raises:
        ConfigurationError: The value is invalid; the message names the option.
    """
    section, _, name = path.partition(".")
    if section == "source":
        check_option(source_plugin(kind).options, name, value, section)
    else:
        check_option(_Declaration, path, value)
