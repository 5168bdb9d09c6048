r"""The connector declaration: load it from YAML or plain data, validate it, write it back.

Example::

    connector = Connector.from_dict({
        "name": "shop",
        "source": {"type": "cassandra", "conn_id": "cassandra_shop", "cdc_raw": "/landing/shop"},
        "tables": ["shop\\..*"],
        "lake": {"catalog": "lake", "namespace": "shop"},
    })
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from airflow_cdc_provider.connector.notify import NotificationOptions
from airflow_cdc_provider.connector.publish import PublishOptions, refuse_what_clashes
from airflow_cdc_provider.connector.publish_merged import refuse_statics_apart
from airflow_cdc_provider.connector.signal_options import (
    SignalOptions,
    refuse_signal_topic,
    refuse_signals_that_cannot_come,
)
from airflow_cdc_provider.connector.snapshot_options import (
    EVERY_TABLE,
    OnLostPosition,
    SnapshotOptions,
    wrong_pattern,
)
from airflow_cdc_provider.connector.snapshotter import load_snapshotter
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.options import (
    from_environment,
    literal_secrets,
    option,
    parse,
    to_plain,
    without_literal_secrets,
)
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.yaml_file import read_yaml

SourceOptions = CassandraOptions | DebeziumOptions | MongodbOptions | ScyllaOptions | VitessOptions
SOURCE_OPTIONS: Mapping[
    str,
    type[CassandraOptions]
    | type[DebeziumOptions]
    | type[MongodbOptions]
    | type[ScyllaOptions]
    | type[VitessOptions],
] = {
    "cassandra": CassandraOptions,
    "debezium": DebeziumOptions,
    "mongodb": MongodbOptions,
    "scylla": ScyllaOptions,
    "vitess": VitessOptions,
}
# Releases of the connectors whose events are made.
_DEBEZIUM_VERSION: Final = "3.6.1.Final"
_SCYLLA_VERSION: Final = "2.0.4"

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
    """Refuse what one of the protocols of StatsD can't carry, or would drop without a word."""
    for name, value in values.items():
        if name in _OWN_TAGS:
            return f"names that metrics do not have already: not {', '.join(sorted(_OWN_TAGS))}"
        if not _TAG_NAME.fullmatch(name):
            return f"names of letters, digits, _ . and -, not led by a digit ({name!r})"
        if not _TAG_VALUE.fullmatch(value):
            return f"values of 1 to 200 characters without space , = | and # ({name}: {value!r})"
    return ""


@dataclass(frozen=True)
class GuardrailOptions:
    """A limit against patterns that select more than was meant."""

    max_tables: int = option("The most tables that a connector may capture; 0: no limit", 0, minimum=0)
    action: Literal["warn", "fail"] = option("What more of them do: a finding, or a failed run", "warn")


@dataclass(frozen=True)
class MergeOptions:
    """When pending changes are merged: cost against freshness."""

    min_pending_ratio: float = option(
        "Merge a table when its pending changes reach this part of its rows; 0 merges at each run",
        0.0,
        minimum=0.0,
    )
    freshness_seconds: float = option(
        "Merge at the latest when the oldest pending change has this age", 3600.0, minimum=0
    )


@dataclass(frozen=True)
class LakeOptions:
    """Where mirrors and the changes table live."""

    format: Literal["iceberg"] = option("Table format", "iceberg")
    catalog: str = option("Name of the Spark catalog", "lake", check=_identifier)
    namespace: str = option("Namespace of the mirrors; default: the connector's name", "", check=_identifier)
    catalog_options: Mapping[str, str] = option(
        "spark.sql.catalog.<catalog>.* for a catalog that Spark's own configuration doesn't declare "
        "(type, warehouse, uri ...)",
        {},
    )
    format_version: Literal[2, 3] = option("Iceberg table version: 2 is what most other engines read", 2)
    retention_seconds: int = option(
        "How long merged batches and old snapshots are kept", 7 * 86_400, minimum=0
    )
    tombstone_retention_seconds: int = option(
        "How long deletions are remembered; no older change may arrive after it", 10 * 86_400, minimum=0
    )
    statics: Literal["rows", "table"] = option(
        "Where static columns of Cassandra are shown. rows: in each row of their partition, as by SELECT *; "
        "table: once per partition, in a table <mirror>__statics",
        "rows",
    )
    merge: MergeOptions = option("When pending changes are merged", MergeOptions)


@dataclass(frozen=True)
class Connector:
    """One declared capture.

    Args:
        name: Its name; also the default topic prefix and namespace.
        type: The source's type.
        source: The source's options.
        tables: Regular expressions, anchored, on ``keyspace.table`` or ``database.collection``. A
            materialized view of Cassandra is selected by its full name alone.
        exclude_tables: Likewise, what to leave out.
        snapshot: How tables are read in full.
        lake: Where mirrors live.
        publish: How changes become events.
        guardrail: How many tables may be captured.
        notifications: Who is told of snapshots.
        metric_tags: Tags that all metrics of the connector bear beside their own.
        lag_statistics: Whether captures tell how their changes' lag is spread.
        signals: How it is told what to do while it runs.
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
        """Validate plain data.

        Raises:
            ConfigurationError: Names each wrong option, the value found and what was expected.
        """
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
        if kind not in SOURCE_OPTIONS:
            wrong = ConfigurationError(
                "option source.type is wrong",
                expected=f"one of {', '.join(SOURCE_OPTIONS)}",
                found=repr(kind),
            )
            raise joined([*problems, wrong])
        try:
            options = parse(SOURCE_OPTIONS[kind], source, "source")
        except ConfigurationError as error:
            problems.append(error)
        if problems:
            raise joined(problems)
        refuse_what_clashes(kind, top.publish)
        refuse_statics_apart(top.publish, top.lake.statics)
        if kind != "cassandra":
            _refuse_statics(kind, top.lake)
        if isinstance(options, MongodbOptions):
            _refuse_holes(options, top.snapshot)
        if isinstance(options, DebeziumOptions):
            _refuse_snapshots(top.snapshot, publishes=top.publish != PublishOptions())
        refuse_signals_that_cannot_come(options, top.signals, top.snapshot.incremental)
        refuse_signal_topic(top.signals, top.publish.kafka.connection)
        return cls(
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_dict` reads back to an equal connector."""
        plain = to_plain(self)
        kind = plain.pop("type")
        plain["source"] = {"type": kind, **plain.get("source", {})}
        return dict(plain)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of every metric of the connector."""
        return {**self.metric_tags, "connector": self.name, "source": self.type}

    @property
    def secrets(self) -> Mapping[str, str]:
        """Secrets that the declaration holds as they are, by the names of their options."""
        return literal_secrets(self.source)

    def without_secrets(self) -> Connector:
        """Return the connector as a job's spec may have it: its secrets travel with the connection."""
        return replace(self, source=without_literal_secrets(self.source))

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
        """Name of the table of changes that could not be decoded."""
        return f"{self._own_tables}_quarantine"

    @property
    def refused_table(self) -> str:
        """Name of the table of records that a broker refused."""
        return f"{self._own_tables}_refused"

    @property
    def published_table(self) -> str:
        """Name of the table that tells how far events are published to Pulsar."""
        return f"{self._own_tables}_published"

    @property
    def notifications_table(self) -> str:
        """Name of the table of notifications, which channel ``table`` fills."""
        return f"{self._own_tables}_notifications"

    @property
    def _own_tables(self) -> str:
        return f"{self.namespace}.{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}"

    def mirror_table(self, table: str) -> str:
        """Return the name of a source table's mirror inside the catalog: ``<namespace>.<keyspace>_<table>``.

        Characters that a catalog may not take become ``_x<hex>_``. Tables of which two would share a name
        (``a_b.c`` and ``a.b_c``) are refused by the job.
        """
        database, _, name = table.partition(".")
        return f"{self.namespace}.{_safe(database)}_{_safe(name)}"

    def when_lost(self, *, hole: bool) -> OnLostPosition:
        """Return what a run does when the source no longer has what follows the stored offset.

        Args:
            hole: Whether the source itself goes on after what is lost.

        Returns:
            The option ``snapshot.on_lost_position``; never ``auto``.
        """
        chosen = self.snapshot.on_lost_position
        if chosen != "auto":
            return chosen
        if self.snapshot.mode in ("when_needed", "always"):
            return "snapshot"
        if self.snapshot.mode == "custom":
            own = load_snapshotter(self.snapshot.custom, self.snapshot.custom_settings)
            return "snapshot" if own.snapshot_on_data_error() else "fail"
        return "fail_once" if hole else "fail"

    def beyond_guardrail(self, tables: Sequence[str]) -> str:
        """Tell that there are more captured tables than the guardrail allows; an empty text if not."""
        limit = self.guardrail.max_tables
        if not limit or len(tables) <= limit:
            return ""
        return f"{len(tables)} tables are captured, and guardrail.max_tables is {limit}"

    @property
    def topic_prefix(self) -> str:
        """First part of each topic."""
        return self.publish.topic_prefix or self.name

    @property
    def event_version(self) -> str:
        """Text of ``source.version``."""
        return self.publish.version or (_SCYLLA_VERSION if self.type == "scylla" else _DEBEZIUM_VERSION)

    def names(self, table: str) -> bool:
        """Tell whether one of the patterns spells out this table: dots may have their backslash or not."""
        return any(re.sub(r"\\(\W)", r"\1", pattern) == table for pattern in self.tables)

    def selects(self, table: str) -> bool:
        """Tell whether a table belongs to the capture."""
        return any(re.fullmatch(p, table) for p in self.tables) and not any(
            re.fullmatch(p, table) for p in self.exclude_tables
        )


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", lambda match: f"_x{ord(match.group()):x}_", name)


@dataclass(frozen=True)
class _Declaration:
    name: str = option("The connector's name", check=_name)
    source: Mapping[str, Any] = option("The source: its type and options")
    tables: tuple[str, ...] = option(
        "Anchored regular expressions of tables; a materialized view of Cassandra only by its full name",
        EVERY_TABLE,
        check=wrong_pattern,
    )
    exclude_tables: tuple[str, ...] = option("Tables to leave out, likewise", (), check=wrong_pattern)
    snapshot: SnapshotOptions = option("How tables are read in full", SnapshotOptions)
    lake: LakeOptions = option("Where mirrors live", LakeOptions)
    publish: PublishOptions = option("How changes become events", PublishOptions)
    guardrail: GuardrailOptions = option("How many tables may be captured", GuardrailOptions)
    notifications: NotificationOptions = option("Who is told of snapshots", NotificationOptions)
    metric_tags: Mapping[str, str] = option(
        "Tags that all metrics of the connector bear beside their own", {}, check=_tags
    )
    lag_statistics: bool = option(
        "Tell per run the least, mean and greatest time from a change to its capture, and its quantiles", True
    )
    signals: SignalOptions = option("How a running connector is told what to do", SignalOptions)


def _refuse_statics(kind: str, lake: LakeOptions) -> None:
    if lake.statics != LakeOptions().statics:
        raise ConfigurationError(
            "option lake.statics is for source cassandra", found=f"source {kind}", expected="its default"
        )


def _refuse_snapshots(snapshot: SnapshotOptions, *, publishes: bool) -> None:
    """Refuse what topics can't give: rows of a table beside its events, and events of other forms."""
    if snapshot.mode not in ("initial", "never") or snapshot.on_lost_position == "snapshot":
        raise ConfigurationError(
            "source debezium takes no snapshots: Debezium's own come by the topics",
            expected="snapshot.mode: initial or never, and another on_lost_position than snapshot",
            found=f"mode {snapshot.mode}, on_lost_position {snapshot.on_lost_position}",
        )
    if publishes:
        raise ConfigurationError(
            "source debezium publishes nothing: its events stand in topics already", expected="no publish"
        )


def _refuse_holes(options: MongodbOptions, snapshot: SnapshotOptions) -> None:
    """Refuse to go on after lost changes where each update is applied to what the ones before it left."""
    if options.full_document == "none" and snapshot.on_lost_position == "go_on":
        raise ConfigurationError(
            "option snapshot.on_lost_position: go_on doesn't go with source.full_document: none",
            expected="snapshot, fail or fail_once: after a hole updates would change outdated documents",
        )


def load_connector(path: str | Path) -> Connector:
    """Read a declaration from a YAML file.

    Raises:
        ConfigurationError: The file is missing, no YAML, or wrong; the message names the option.
    """
    try:
        values = read_yaml(path)
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no connector file {path}") from error
    return Connector.from_dict(values)
