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
from airflow_cdc_provider.connector.publish_mongodb import (
    MongodbPublishOptions,
    OutboxOptions,
    UnwrapOptions,
)
from airflow_cdc_provider.connector.signal_options import (
    IncrementalOptions,
    SignalOptions,
    refuse_signals_that_cannot_come,
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
from airflow_cdc_provider.plugins import wrong_place
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.yaml_file import read_yaml

SourceOptions = CassandraOptions | MongodbOptions
SOURCE_OPTIONS: Mapping[str, type[CassandraOptions] | type[MongodbOptions]] = {
    "cassandra": CassandraOptions,
    "mongodb": MongodbOptions,
}
EVERY_TABLE: Final = (".*",)
"""What a declaration selects that names no tables."""
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


def _patterns(values: tuple[str, ...]) -> str:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions on keyspace.table or database.collection ({value!r}: {error})"
    return ""


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


OnLostPosition = Literal["auto", "fail", "fail_once", "snapshot", "go_on"]


@dataclass(frozen=True)
class SnapshotOptions:
    """Whether and how tables are read in full."""

    mode: Literal["initial", "never", "always", "initial_only", "when_needed", "custom"] = option(
        "initial: each table once, before its first merge; never; always: at each run; initial_only: as "
        "initial, and nothing is captured; when_needed: as initial, and anew when the position is lost; "
        "custom: a class of your own decides",
        "initial",
    )
    custom: str = option(
        "That class, derived from airflow_cdc_provider.connector.snapshotter.Snapshotter, as "
        "package.module:Class",
        "",
        check=wrong_place,
    )
    custom_settings: Mapping[str, Any] = option("What it is made with", {})
    include: tuple[str, ...] = option(
        "Anchored regular expressions of the tables that are read in full by themselves; the others are "
        "captured, and read when a task asks for it",
        EVERY_TABLE,
        check=_patterns,
    )
    on_lost_position: OnLostPosition = option(
        "When the source no longer has what follows the stored offset. fail: each run, until a person acts; "
        "fail_once: this run, and the next reads the tables anew; snapshot: they are read anew at once; "
        "go_on: capture goes on, and what mirrors lack is told. auto: snapshot with mode when_needed and "
        "always, else fail, but fail_once where a source drops changes and goes on, as Cassandra may",
        "auto",
    )
    filters: Mapping[str, str] = option("Per table, a filter in the source's own language", {})
    rows_per_second: float = option(
        "Rows read at most, by all tasks together; 0: as fast as the source gives them", 0.0, minimum=0.0
    )
    incremental: IncrementalOptions = option(
        "How snapshots beside the stream read, which signals ask for", IncrementalOptions
    )

    def __post_init__(self) -> None:
        """Refuse choices that contradict each other.

        Raises:
            ConfigurationError: With what goes together.
        """
        if (self.mode == "custom") != bool(self.custom) or (self.custom_settings and not self.custom):
            raise ConfigurationError(
                "options snapshot.mode: custom and snapshot.custom go together",
                expected="both, with snapshot.custom_settings if need be, or none of them",
                found=f"mode {self.mode}, custom {self.custom or 'none'}",
            )
        if self.mode == "never" and self.on_lost_position in ("snapshot", "fail_once"):
            raise ConfigurationError(
                f"option snapshot.on_lost_position: {self.on_lost_position} needs a snapshot",
                expected="another snapshot.mode than never",
            )
        if self.mode == "when_needed" and self.on_lost_position not in ("auto", "snapshot"):
            raise ConfigurationError(
                "option snapshot.mode: when_needed reads tables anew when the position is lost",
                expected="snapshot.on_lost_position: snapshot, or none",
                found=self.on_lost_position,
            )

    def includes(self, table: str) -> bool:
        """Tell whether a table is read in full by itself."""
        return any(re.fullmatch(pattern, table) for pattern in self.include)


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


def _topic_pattern(value: str) -> str:
    names = re.findall(r"\{([^{}]*)\}", value)
    rest = re.sub(r"\{[^{}]*\}", "", value)
    known = {"prefix", "database", "table"}
    if not value or (names and set(names) <= known and re.fullmatch(r"[A-Za-z0-9._-]*", rest)):
        return ""
    return "letters, digits, . _ - and {prefix}, {database} or {table}"


def _delimiter(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{1,20}", value) else "letters, digits, . _ and -"


def _topic_part(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value) else "letters, digits, . _ and -"


def _optional_topic(value: str) -> str:
    return "" if not value else _topic_part(value)


def _operations(values: tuple[str, ...]) -> str:
    known = ("c", "i", "u", "d", "r", "t")
    return "" if set(values) <= set(known) else f"some of {', '.join(known)}"


def _column_paths(values: tuple[str, ...]) -> str:
    for value in values:
        if len(value.split(".")) < 3 or not all(value.split(".")):
            return f"keyspace.table.column each, with .field for a field of it ({value!r})"
    return ""


@dataclass(frozen=True)
class CassandraPublishOptions:
    """Choices that only events of Cassandra have."""

    operations: Literal["own", "common"] = option(
        "own: i, u, d and r as Debezium for Cassandra writes them; common: c, u, d and t as its other "
        "connectors do, which its EnvelopeTransformation makes of them",
        "own",
    )
    source: Literal["current", "documented"] = option(
        "The source block: current: that of Debezium 3; documented: the nine fields that its page for "
        "Cassandra shows, with microseconds in ts_ms",
        "current",
    )
    decimals: Literal["double", "precise", "string"] = option(
        "How decimals are shown in envelope debezium (decimal.handling.mode)", "double"
    )
    varints: Literal["long", "precise", "string"] = option(
        "How varints are shown in envelope debezium (varint.handling.mode)", "long"
    )
    frozen: Literal["structured", "bytes"] = option(
        "How columns of frozen lists, sets, maps and user-defined types are shown in envelope debezium: by "
        "their parts, as Debezium's code writes them; or as bytes, which its page says: the value as "
        "Cassandra stores it",
        "structured",
    )
    converters: Mapping[str, Mapping[str, Any]] = option(
        "Functions that show columns of envelope debezium otherwise: type (package.module:function), "
        "columns (a regular expression on keyspace.table.column), schema_name, and settings of its own",
        {},
    )
    before: bool = option(
        "Values of envelope debezium have a field before: the row as it stood before the change, as far as "
        "the changes that are read, or the mirror, tell",
        False,
    )
    order: Literal["log", "write_time"] = option(
        "log: events of each node in the order of its commit log, one node after the other; write_time: in "
        "the order of their write times, so that those of a partition come in order whichever nodes logged "
        "them (event.order.guarantee.mode). All that one command reads is ordered, and kept in memory for it",
        "log",
    )
    node_header: bool = option(
        "A header cdc.node on each event of a change: the host id of the node whose commit log tells it; "
        "rows of snapshots are the cluster's and have none",
        True,
    )
    reread: bool = option(
        "In envelope datastax rows are read again at the source, at consistency ALL and no faster than "
        "snapshot.rows_per_second, as DataStax's connector reads them: each row that was changed once per "
        "command, as it is then. Otherwise they are made of the logged values",
        False,
    )
    key_in_value: bool = option(
        "In envelope datastax the value holds the key columns too, and {} stands for a row that is gone: "
        "DataStax's JSON-only form",
        False,
    )


@dataclass(frozen=True)
class PublishOptions:
    """How changes become events (topic prefix, envelope and converters)."""

    topic_prefix: str = option("Leads each topic; default: the connector's name", "")
    topic_delimiter: str = option("Stands between the parts of a topic's name", ".", check=_delimiter)
    topic_pattern: str = option(
        "Names topics instead, with {prefix}, {database} (the keyspace) and {table}, for example "
        "data-{database}.{table}",
        "",
        check=_topic_pattern,
    )
    topic_naming: str = option(
        "A class of your own that names topics instead, as package.module:Class", "", check=wrong_place
    )
    envelope: Literal["debezium", "datastax", "datastax-cells", "document", "cloudevents"] = option(
        "Form of the events. debezium; for Cassandra also datastax: key and whole row after the change; "
        "datastax-cells: the form with cells that DataStax's documents show; for MongoDB also document: the "
        "document after the change as Extended JSON, without an envelope; cloudevents: CloudEvents 1.0 in "
        "JSON, as Debezium's CloudEventsConverter writes them",
        "debezium",
    )
    key: Literal["json", "avro"] = option("Converter of keys", "json")
    value: Literal["json", "avro"] = option("Converter of values", "json")
    schemas: bool = option(
        "Show the schema: beside each payload, as schemas.enable does; with Avro beside the record", False
    )
    tombstones: bool = option("A null value after each delete", True)
    headers: bool = option("Debezium's context headers", True)
    event_index: bool = option(
        "A header cdc.index on each event: its number among those of one change, from 0", False
    )
    skipped_operations: tuple[str, ...] = option(
        "Kinds of events to leave out: c (or i), u, d, r, t", (), check=_operations
    )
    exclude_columns: tuple[str, ...] = option(
        "Columns to leave out of values: keyspace.table.column, or keyspace.table.column.field for a field "
        "of a user-defined type; keys keep theirs",
        (),
        check=_column_paths,
    )
    schema_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "How names of schemas are made fit for Avro; auto: avro where Avro is written, else none", "auto"
    )
    field_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "How names of fields are made fit for Avro, likewise", "auto"
    )
    skip_unchanged: bool = option(
        "Leave out updates that changed nothing of what the event shows: before and after are equal. Needs "
        "the document before the change",
        False,
    )
    transactions: bool = option(
        "Events tell the transaction that they are part of, and a record stands at the beginning and at the "
        "end of each (provide.transaction.metadata)",
        False,
    )
    transaction_topic: str = option(
        "Topic of those records, after the prefix", "transaction", check=_topic_part
    )
    schema_changes: bool = option(
        "A record for each change of a collection or database that the source tells of: drop, rename, "
        "dropDatabase, invalidate, and with source.stream.expanded_events create, modify, createIndexes ...",
        False,
    )
    schema_changes_topic: str = option(
        "Topic of those records, after the prefix", "schema-changes", check=_topic_part
    )
    heartbeat_prefix: str = option(
        "Leads the topic of heartbeats, before the prefix", "__debezium-heartbeat", check=_topic_part
    )
    heartbeat_topic: str = option(
        "Topic of heartbeats, whatever the prefix; connectors may share it", "", check=_optional_topic
    )
    version: str = option("Text of source.version", "3.6.1.Final")
    task_id: str = option("Text of the header taskId", "0")
    cassandra: CassandraPublishOptions = option(
        "Choices that only events of Cassandra have", CassandraPublishOptions
    )
    mongodb: MongodbPublishOptions = option("Choices that only events of MongoDB have", MongodbPublishOptions)
    unwrap: UnwrapOptions = option("Events as plain rows, without an envelope", UnwrapOptions)
    outbox: OutboxOptions = option("Collections whose documents are events to be routed", OutboxOptions)


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
    snapshot: SnapshotOptions = SnapshotOptions()
    lake: LakeOptions = LakeOptions()
    publish: PublishOptions = PublishOptions()
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
        if kind != "cassandra":
            _refuse_cassandras(kind, top.publish, top.lake)
        if kind != "mongodb":
            _refuse_mongodbs(kind, top.publish)
        if isinstance(options, MongodbOptions):
            _refuse_holes(options, top.snapshot)
        _refuse_clashing_forms(top.publish)
        _refuse_other_envelopes(top.publish)
        refuse_signals_that_cannot_come(options, top.signals, top.snapshot.incremental)
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
        check=_patterns,
    )
    exclude_tables: tuple[str, ...] = option("Tables to leave out, likewise", (), check=_patterns)
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


def _refuse_cassandras(kind: str, publish: PublishOptions, lake: LakeOptions) -> None:
    """Refuse choices that only Cassandra has: silence would be taken for consent."""
    chosen = [
        f"publish.{name}"
        for name in ("exclude_columns", "event_index", "cassandra")
        if getattr(publish, name) != getattr(PublishOptions(), name)
    ]
    if publish.envelope.startswith("datastax"):
        chosen.append("publish.envelope")
    if lake.statics != LakeOptions().statics:
        chosen.append("lake.statics")
    if chosen:
        raise ConfigurationError(
            f"option {chosen[0]} is for source cassandra",
            found=f"source {kind}",
            expected="its default",
        )


def _refuse_mongodbs(kind: str, publish: PublishOptions) -> None:
    """Refuse choices that only MongoDB has."""
    names = (
        "skip_unchanged",
        "transactions",
        "transaction_topic",
        "schema_changes",
        "schema_changes_topic",
        "mongodb",
        "unwrap",
        "outbox",
    )
    chosen = [
        f"publish.{name}" for name in names if getattr(publish, name) != getattr(PublishOptions(), name)
    ]
    if publish.envelope in ("document", "cloudevents"):
        chosen.append("publish.envelope")
    if chosen:
        raise ConfigurationError(
            f"option {chosen[0]} is for source mongodb", found=f"source {kind}", expected="its default"
        )


def _refuse_holes(options: MongodbOptions, snapshot: SnapshotOptions) -> None:
    """Refuse to go on after lost changes where each update is applied to what the ones before it left."""
    if options.full_document == "none" and snapshot.on_lost_position == "go_on":
        raise ConfigurationError(
            "option snapshot.on_lost_position: go_on doesn't go with source.full_document: none",
            expected="snapshot, fail or fail_once: after a hole updates would change outdated documents",
        )


def _refuse_clashing_forms(publish: PublishOptions) -> None:
    if publish.unwrap.enabled and publish.envelope in ("document", "cloudevents"):
        raise ConfigurationError(
            f"options publish.unwrap and publish.envelope: {publish.envelope} exclude each other",
            remedy="unwrap gives the document's fields, envelope document its Extended JSON, cloudevents "
            "events with attributes; keep one",
        )
    if publish.envelope == "cloudevents" and publish.value != "json":
        raise ConfigurationError(
            "CloudEvents are written in JSON alone", expected="publish.value: json", found=publish.value
        )
    if publish.topic_naming and publish.topic_pattern:
        raise ConfigurationError(
            "options publish.topic_naming and publish.topic_pattern exclude each other", remedy="keep one"
        )


def _refuse_other_envelopes(publish: PublishOptions) -> None:
    """Refuse choices that the events' form doesn't know: who hides a column by a converter counts on it."""
    names = {
        "datastax": (
            "operations",
            "source",
            "decimals",
            "varints",
            "frozen",
            "converters",
            "before",
            "order",
        ),
        "datastax-cells": ("key_in_value", "reread", "before"),
    }
    for name in names.get(publish.envelope, ("key_in_value", "reread")):
        found = getattr(publish.cassandra, name)
        if found != getattr(CassandraPublishOptions(), name):
            raise ConfigurationError(
                f"option publish.cassandra.{name} says nothing in envelope {publish.envelope}",
                expected="its default, or another publish.envelope",
                found=found if isinstance(found, str) else "",  # a converter's settings may hold a salt
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
