"""Options of a MongoDB source. Light: read by DAG files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_cdc_provider.custom_classes import invalid_import_path
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.patterns import matches_any, wrong_patterns
from airflow_cdc_provider.sources.mongodb.change_stream.stages import (
    check_copy_stages,
    check_stages,
    read_stages,
)
from airflow_cdc_provider.sources.mongodb.declared_columns import declared_columns
from airflow_cdc_provider.sources.mongodb.start_times import check_start_time, read_start_time
from airflow_cdc_provider.sources.plugin import SourceOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

_COLLATION = (
    "locale",
    "strength",
    "caseLevel",
    "caseFirst",
    "numericOrdering",
    "alternate",
    "maxVariable",
    "backwards",
    "normalization",
)


def _collation(values: Mapping[str, Any]) -> str:
    if not values or ("locale" in values and set(values) <= set(_COLLATION)):
        return ""
    return f"locale, and any of {', '.join(_COLLATION[1:])}"


def _timeout(seconds: float) -> str:
    return "" if seconds == 0 or seconds >= 0.1 else "0, or at least 0.1"


def _operations(values: tuple[str, ...]) -> str:
    return "" if set(values) <= {"c", "u", "d"} else "some of c, u, d"


@dataclass(frozen=True)
class MongodbStream:
    """Options of the server's change stream."""

    pipeline: tuple[Mapping[str, Any], ...] = option(
        "Custom aggregation stages, as a list or as JSON, with Extended JSON for types that JSON lacks",
        (),
        read=read_stages,
        check=check_stages,
    )
    pipeline_order: Literal["internal_first", "user_first", "user_only"] = option(
        "internal_first: custom stages run after the built-in filter; user_first: before it, on all events "
        "of the scope; user_only: instead of the built-in filter, for experts",
        "internal_first",
    )
    oversize: Literal["split", "skip", "fail"] = option(
        "Events above the server's limit of 16 MB. split: the server sends fragments (6.0.9), which are "
        "joined; skip: the server leaves out these events and all with a document larger than "
        "skip_threshold_bytes, so mirrors keep the previous state; fail: the run fails and names the "
        "collection",
        "split",
    )
    skip_threshold_bytes: int = option(
        "With oversize: skip: maximum size of fullDocument and fullDocumentBeforeChange of an event",
        0,
        minimum=0,
    )
    skipped_operations: tuple[str, ...] = option(
        "Operations that the server leaves out: c, u (includes replaces), d. Mirrors lack them: without d "
        "they keep deleted documents. To leave out published events only, use publish.skipped_operations",
        (),
        check=_operations,
    )
    update_descriptions: bool = option(
        "Whether the server sends updateDescription, which published events contain. Mirrors don't need it: "
        "false saves its bytes. Requires full_document other than none",
        True,
    )
    expanded_events: bool = option(
        "showExpandedEvents (6.0): also capture create, createIndexes, dropIndexes, modify, shardCollection "
        "and similar events, and (6.1) disambiguatedPaths of updates",
        False,
    )
    collation: Mapping[str, Any] = option(
        "Collation for comparisons in the stages: {locale: ...}", {}, check=_collation
    )
    comment: str = option(
        "Prefix of the comment that identifies the cursors in the server's profiler, log and currentOp",
        "airflow-cdc-provider",
    )
    resume_by_time: bool = option(
        "Resume by the stored cluster time if the server refuses the stored token and its oplog still covers "
        "that time; the events of that one cluster time may be delivered twice",
        False,
    )

    def __post_init__(self) -> None:
        """Validate combinations of options.

        Raises:
            ConfigurationError: Options contradict each other; the message states the valid combination.
        """
        if self.oversize == "skip" and not self.skip_threshold_bytes:
            raise ConfigurationError(
                "option source.stream.skip_threshold_bytes is missing",
                expected="with oversize: skip, the largest document in bytes",
            )
        if self.oversize != "skip" and self.skip_threshold_bytes:
            raise ConfigurationError(
                f"option source.stream.skip_threshold_bytes has no effect with oversize: {self.oversize}",
                expected="oversize: skip",
            )
        if self.pipeline_order == "user_only" and not self.pipeline:
            raise ConfigurationError(
                "option source.stream.pipeline is missing",
                expected="the stages that replace the built-in filter with pipeline_order: user_only",
            )


def _collections(values: tuple[str, ...]) -> str:
    return wrong_patterns(values, "database.collection")


@dataclass(frozen=True)
class MongodbInference:
    """Options of inferred columns."""

    collections: tuple[str, ...] = option(
        "Anchored regular expressions of the collections whose mirrors get a column for each top-level "
        "field, and _rest for all other values; declared columns come first",
        (),
        check=_collections,
    )
    max_columns: int = option(
        "Maximum number of inferred columns of one mirror; further fields are stored in _rest", 200, minimum=1
    )

    def includes(self, table: str) -> bool:
        """Return whether a collection's columns are inferred."""
        return matches_any(self.collections, table)


@dataclass(frozen=True)
class MongodbCopy:
    """Options of full reads of collections."""

    pipeline: tuple[Mapping[str, Any], ...] = option(
        "Custom aggregation stages for all full reads, as a list or as JSON; a single task then reads a "
        "collection",
        (),
        read=read_stages,
        check=check_copy_stages,
    )
    allow_disk_use: bool = option(
        "Whether the server may sort on disk for aggregations: full reads with a pipeline, and batch reads",
        True,
    )


@dataclass(frozen=True)
class MongodbAdvanced:
    """Advanced options with suitable defaults."""

    batch_events: int = option("Change events per reply of the server (batchSize)", 10_000, minimum=1)
    read_ahead_bytes: int = option(
        "Approximate bytes of change events to prefetch per change stream; 0: no prefetch",
        32 * 1024 * 1024,
        minimum=0,
    )
    read_ahead_events: int = option(
        "Maximum number of prefetched events; more than batch_events; 0: no limit",
        100_000,
        minimum=0,
    )
    backlog_streams: int = option(
        "Change streams that read a backlog in parallel; 0: as many as Spark's tasks, up to 8; 1: one",
        0,
        minimum=0,
    )
    sample_oplog: bool = option(
        "Sample local.oplog.rs, which requires find on it, to split a backlog evenly when writes come in "
        "bursts",
        False,
    )
    backlog_threshold_seconds: float = option(
        "Seconds of cluster time behind the head from which a capture uses several change streams",
        10.0,
        minimum=0.0,
    )
    fetch_size: int = option("Documents per reply of the server in a snapshot (batchSize)", 10_000, minimum=1)
    ranges_per_snapshot: int = option(
        "Minimum number of _id ranges into which a collection's snapshot is split", 8, minimum=1
    )
    strict: bool = option("Fail on the first broken or undecodable event instead of quarantining it", False)
    max_await_seconds: float = option(
        "Maximum time that the server waits for new events before it replies", 1.0, minimum=0.0
    )
    connect_timeout_seconds: float = option(
        "Server selection and connect timeout; 0: no limit to connect, the driver's default to select",
        10.0,
        check=_timeout,
    )
    validation_timeout_seconds: float = option(
        "Timeout of a connection check, for all its commands together",
        60.0,
        minimum=0.1,
    )
    heartbeat_seconds: float = option(
        "Interval at which the driver monitors all members of the deployment and discovers new ones",
        10.0,
        minimum=0.5,
    )
    no_cursor_timeout: bool = option(
        "Whether a snapshot's cursors may be idle for more than 10 minutes between two replies; their "
        "sessions are refreshed meanwhile",
        True,
    )
    session_refresh_seconds: float = option(
        "Interval of session refreshes; by default servers expire a session after 30 minutes",
        300.0,
        minimum=1.0,
    )
    connect_attempts: int = option(
        "Number of retries after failed attempts to connect to the server. With the default pauses a run "
        "fails after 20 min 7 s of them; 0: no retries",
        16,
        minimum=0,
    )
    connect_backoff_seconds: float = option(
        "Pause after the first failed attempt; it doubles with each further attempt", 1.0, minimum=0.0
    )
    connect_max_backoff_seconds: float = option("Maximum pause between attempts", 120.0, minimum=0.0)

    def __post_init__(self) -> None:
        """Validate that the buffer can hold one reply.

        Raises:
            ConfigurationError: The buffer is smaller than one reply; the message states the minimum.
        """
        if 0 < self.read_ahead_events <= self.batch_events:
            raise ConfigurationError(
                "option source.advanced.read_ahead_events is too small",
                expected=f"more than batch_events, {self.batch_events}, or 0",
                found=str(self.read_ahead_events),
            )


@dataclass(frozen=True)
class MongodbOptions(SourceOptions):
    """Options of a MongoDB source."""

    conn_id: str = option("Airflow connection of the deployment; not needed offline", "")
    scope: Literal["deployment", "database", "collection"] = option(
        "Scope of the change stream", "deployment"
    )
    target: str = option("Scope database: its name; scope collection: database.collection", "")
    authentication_class: str = option(
        "Custom class that provides credentials each time a process connects, as package.module:Class; "
        "credentials in the connection string take precedence",
        "",
        check=invalid_import_path,
    )
    start_at: str = option(
        "Start of the first capture instead of now: an ISO date (UTC by default), seconds since 1970, or a "
        "BSON timestamp as one number. Has no effect once an offset is stored",
        "",
        read=read_start_time,
        check=check_start_time,
    )
    full_document: Literal["lookup", "post_image", "none"] = option(
        "Source of the full document of an update: lookup by the server; the post-image; none: the server "
        "sends only the update description, which mirrors apply (5.0)",
        "lookup",
    )
    pre_images: bool = option(
        "Request the document before the change (pre-image), where the collection records it", False
    )
    document_column: Literal["extended_json", "variant", "none"] = option(
        "How the mirror stores the exact document", "extended_json"
    )
    columns: Mapping[str, Mapping[str, str]] = option(
        "Declared columns: per collection, column name -> 'dotted.path type' with a Spark SQL type", {}
    )
    batch: tuple[str, ...] = option(
        "Anchored regular expressions of views, time series and collections that each run reads in full "
        "instead of streaming; views and time series have no change streams",
        (),
        check=_collections,
    )
    batch_interval_seconds: float = option(
        "Minimum seconds between the starts of two batch reads of a table",
        60.0,
        minimum=0.0,
    )
    batch_cursors: Mapping[str, str] = option(
        "Per batch table, by full name, a field whose values only increase: after one full read, runs read "
        "only documents whose value is at least the greatest value of the previous read",
        {},
    )
    batch_overlap_seconds: float = option(
        "How far before the last value an incremental batch read starts, for late values; applies to times "
        "and ObjectIds",
        0.0,
        minimum=0.0,
    )
    batch_full_refresh_seconds: float = option(
        "Interval of full reads of such a table, which detect deletions and late values; 0: only the first",
        0.0,
        minimum=0.0,
    )
    copy: MongodbCopy = option("Full reads of collections", MongodbCopy)
    infer: MongodbInference = option("Inferred columns", MongodbInference)
    stream: MongodbStream = option("The change stream", MongodbStream)
    advanced: MongodbAdvanced = option("Advanced options", MongodbAdvanced)

    def in_batches(self, table: str) -> bool:
        """Return whether each run reads the table in full instead of streaming it."""
        return matches_any(self.batch, table)

    @property
    def strict(self) -> bool:
        """Whether a record that can't be decoded fails the job instead of being quarantined."""
        return self.advanced.strict

    def __post_init__(self) -> None:
        """Validate combinations of options; with scope deployment the target has no effect.

        Raises:
            ConfigurationError: Options contradict each other; the message states the valid combination. Or a
                declared column is invalid.
        """
        for table, declared in self.columns.items():
            declared_columns(table, declared)
        database, _, collection = self.target.partition(".")
        if self.scope == "database" and (not database or collection):
            raise ConfigurationError(
                "invalid value for option source.target",
                expected="a database for scope database",
                found=self.target or "none",
            )
        if self.scope == "collection" and not (database and collection):
            raise ConfigurationError(
                "invalid value for option source.target",
                expected="database.collection for scope collection",
                found=self.target or "none",
            )
        if streamed := [table for table in self.batch_cursors if not self.in_batches(table)]:
            raise ConfigurationError(
                "option source.batch_cursors names tables that are not read in batches",
                expected="names that match a pattern of source.batch",
                found=", ".join(streamed),
            )
        if self.full_document == "none" and self.copy.pipeline:
            raise ConfigurationError(
                "option source.copy.pipeline changes the documents to which updates are applied",
                expected="a source.full_document other than none",
            )
        if self.full_document == "none" and self.stream.oversize == "skip":
            raise ConfigurationError(
                "option source.stream.oversize: skip leaves out updates; with source.full_document: none "
                "later updates would be applied to outdated documents",
                expected="oversize: split or fail, or a different full_document",
            )
        if self.full_document == "none" and not self.stream.update_descriptions:
            raise ConfigurationError(
                "option source.stream.update_descriptions: false removes all content of updates",
                expected="a source.full_document other than none",
            )

    def validate(self, connector: Connector) -> None:
        """Accept signals in a collection inside the scope; reject skipping changes that updates depend on."""
        if self.full_document == "none" and connector.snapshot.on_lost_position == "continue":
            raise ConfigurationError(
                "option snapshot.on_lost_position: continue can't be combined with "
                "source.full_document: none",
                expected="snapshot, fail or fail_once: after lost changes, updates would apply to outdated "
                "documents",
            )
        signals = connector.signals.collection
        database = signals.partition(".")[0]
        if signals and self.scope == "database" and database != self.target:
            raise ConfigurationError(
                "option signals.collection is outside the scope of the change stream",
                expected=f"a collection of the database {self.target}",
                found=signals,
            )
        if signals and self.scope == "collection" and signals != self.target:
            raise ConfigurationError(
                "option signals.collection is outside the scope of the change stream",
                expected="source.scope deployment or database, or channel file or airflow",
                found=f"scope collection of {self.target}",
            )
