"""Options of a MongoDB source. Light: read by DAG files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.plugins import wrong_place
from airflow_cdc_provider.sources.mongodb.moments import check_moment, read_moment
from airflow_cdc_provider.sources.mongodb.stages import check_copy_stages, check_stages, read_stages

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
    return f"locale, and of {', '.join(_COLLATION[1:])} what is wanted"


def _operations(values: tuple[str, ...]) -> str:
    return "" if set(values) <= {"c", "u", "d"} else "some of c, u, d"


@dataclass(frozen=True)
class MongodbStream:
    """What is asked of the server's change stream."""

    pipeline: tuple[Mapping[str, Any], ...] = option(
        "Aggregation stages of your own, as a list or as JSON, with Extended JSON for types that JSON lacks",
        (),
        read=read_stages,
        check=check_stages,
    )
    pipeline_order: Literal["internal_first", "user_first", "user_only"] = option(
        "internal_first: your stages see what the built-in filter lets through; user_first: they see all "
        "events of the scope; user_only: in place of the built-in filter, for experts",
        "internal_first",
    )
    oversize: Literal["split", "skip", "fail"] = option(
        "Events above the server's limit of 16 MB. split: sent in parts (6.0.9) and put together; skip: left "
        "out by the server, with all others whose document is larger than skip_over_bytes, so that mirrors "
        "keep what was before; fail: the run fails and names the collection",
        "split",
    )
    skip_over_bytes: int = option(
        "With oversize: skip: largest fullDocument, and fullDocumentBeforeChange, of an event that is sent",
        0,
        minimum=0,
    )
    skipped_operations: tuple[str, ...] = option(
        "Kinds of changes that the server leaves out: c, u (replaces too), d. Mirrors lack them: without d "
        "they keep what was deleted. To leave out events alone, use publish.skipped_operations",
        (),
        check=_operations,
    )
    update_descriptions: bool = option(
        "Have updateDescription sent, which events show. Mirrors don't need it: false saves its bytes, and "
        "needs another full_document than none",
        True,
    )
    expanded_events: bool = option(
        "showExpandedEvents (6.0): also capture create, createIndexes, dropIndexes, modify, shardCollection "
        "and their like, and (6.1) disambiguatedPaths of updates",
        False,
    )
    collation: Mapping[str, Any] = option(
        "Collation of comparisons in your stages: {locale: ...}", {}, check=_collation
    )
    comment: str = option(
        "Begins the comment that names our cursors in the server's profiler, log and currentOp",
        "airflow-cdc-provider",
    )
    resume_by_time: bool = option(
        "Go on by the stored cluster time if the server refuses the stored token and still has that time; "
        "the events of that one cluster time may come twice, to no harm",
        False,
    )

    def __post_init__(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ConfigurationError: With what goes together.
        """
        if self.oversize == "skip" and not self.skip_over_bytes:
            raise ConfigurationError(
                "option source.stream.skip_over_bytes is missing",
                expected="with oversize: skip, the largest document in bytes",
            )
        if self.oversize != "skip" and self.skip_over_bytes:
            raise ConfigurationError(
                f"option source.stream.skip_over_bytes says nothing with oversize: {self.oversize}",
                expected="oversize: skip",
            )
        if self.pipeline_order == "user_only" and not self.pipeline:
            raise ConfigurationError(
                "option source.stream.pipeline is missing",
                expected="the stages that pipeline_order: user_only puts in place of the built-in filter",
            )


def _collections(values: tuple[str, ...]) -> str:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions on database.collection ({value!r}: {error})"
    return ""


@dataclass(frozen=True)
class MongodbInference:
    """Columns by what documents turn out to have."""

    collections: tuple[str, ...] = option(
        "Anchored regular expressions of the collections whose mirrors have a column for each top-level "
        "field, and _rest for what these don't hold; declared columns stand before them",
        (),
        check=_collections,
    )
    max_columns: int = option(
        "The most such columns of one mirror; further fields stand in _rest", 200, minimum=1
    )

    def includes(self, table: str) -> bool:
        """Tell whether a collection's columns are inferred."""
        return any(re.fullmatch(pattern, table) for pattern in self.collections)


@dataclass(frozen=True)
class MongodbCopy:
    """What is asked of the server when collections are read in full."""

    pipeline: tuple[Mapping[str, Any], ...] = option(
        "Aggregation stages of your own for all that is read in full, as a list or as JSON; one task reads a "
        "collection then",
        (),
        read=read_stages,
        check=check_copy_stages,
    )
    allow_disk_use: bool = option(
        "Whether the server may sort on disk for what one aggregation reads: with a pipeline, and in batches",
        True,
    )


@dataclass(frozen=True)
class MongodbAdvanced:
    """Options that few users need."""

    batch_events: int = option("Change events asked of the server at a time", 10_000, minimum=1)
    read_ahead_bytes: int = option(
        "Change events fetched while those before are worked on, about, for each change stream; 0: none",
        32 * 1024 * 1024,
        minimum=0,
    )
    read_ahead_events: int = option(
        "Most events that wait so, whatever their bytes; more than batch_events; 0: no such limit",
        100_000,
        minimum=0,
    )
    backlog_streams: int = option(
        "Change streams that read a backlog at once; 0: as many as Spark runs tasks at once, up to 8; 1: one",
        0,
        minimum=0,
    )
    sample_oplog: bool = option(
        "Draw samples of local.oplog.rs, for which the user needs a right, to cut a backlog evenly where "
        "writes come in bursts",
        False,
    )
    backlog_seconds: float = option(
        "How far behind the head, in cluster time, a capture is when it uses several change streams",
        10.0,
        minimum=0.0,
    )
    fetch_size: int = option("Documents asked of the server at a time by a snapshot", 10_000, minimum=1)
    ranges_per_snapshot: int = option(
        "_id ranges that a collection's snapshot is cut into, at least", 8, minimum=1
    )
    strict: bool = option("Fail on the first broken or undecodable event instead of setting it apart", False)
    max_await_seconds: float = option(
        "How long the server may wait for news before it answers", 1.0, minimum=0.0
    )
    connect_timeout_seconds: float = option("How long to look for a usable server", 10.0, minimum=0.1)
    validation_timeout_seconds: float = option(
        "How long a check of the connection may take, all its questions to the server together",
        60.0,
        minimum=0.1,
    )
    heartbeat_seconds: float = option(
        "How often the driver looks at all members of the deployment, and for new ones", 10.0, minimum=0.5
    )
    no_cursor_timeout: bool = option(
        "Whether a snapshot's cursors may rest for more than 10 minutes between two replies; their sessions "
        "are kept alive meanwhile",
        True,
    )
    session_refresh_seconds: float = option(
        "How often they are; servers forget a session after 30 minutes, or as they are set up",
        300.0,
        minimum=1.0,
    )
    connect_attempts: int = option(
        "How many failed attempts to reach the server are followed by a pause and another one. With the "
        "default pauses a run fails after 20 min 7 s of them; 0: at once",
        16,
        minimum=0,
    )
    connect_pause_seconds: float = option(
        "The pause after the first failed attempt; each next one is twice as long", 1.0, minimum=0.0
    )
    connect_longest_pause_seconds: float = option("The longest such pause", 120.0, minimum=0.0)

    def __post_init__(self) -> None:
        """Refuse a queue that has no room for one reply.

        Raises:
            ConfigurationError: With what fits.
        """
        if 0 < self.read_ahead_events <= self.batch_events:
            raise ConfigurationError(
                "option source.advanced.read_ahead_events is too small",
                expected=f"more than batch_events, {self.batch_events}, or 0",
                found=str(self.read_ahead_events),
            )


@dataclass(frozen=True)
class MongodbOptions:
    """What to watch and what each event carries."""

    conn_id: str = option("Airflow connection of the deployment; not needed offline", "")
    scope: Literal["deployment", "database", "collection"] = option(
        "What one change stream watches", "deployment"
    )
    target: str = option("Scope database: its name; scope collection: database.collection", "")
    authentication_class: str = option(
        "A class of your own that gives credentials each time that a process connects, as "
        "package.module:Class; what the connection string says itself wins",
        "",
        check=wrong_place,
    )
    start_at: str = option(
        "Where the first run begins to capture, in place of now: an ISO date (UTC unless it says otherwise), "
        "seconds since 1970, or a BSON timestamp as one number. Says nothing once there is an offset",
        "",
        read=read_moment,
        check=check_moment,
    )
    full_document: Literal["lookup", "post_image", "none"] = option(
        "Where the whole document of an update comes from: the server's look-up; the post-image; none: the "
        "server tells what the update did, and mirrors apply that (5.0)",
        "lookup",
    )
    pre_images: bool = option(
        "Ask for the document before the change, where the collection records it", False
    )
    document_column: Literal["extended_json", "variant", "none"] = option(
        "How the mirror holds the exact document", "extended_json"
    )
    columns: Mapping[str, Mapping[str, str]] = option(
        "Declared columns: per collection, column name -> 'dotted.path type' with a Spark SQL type", {}
    )
    batch: tuple[str, ...] = option(
        "Anchored regular expressions of views, time series and collections that each run reads in full, in "
        "place of a change stream, which views and time series have not",
        (),
        check=_collections,
    )
    batch_seconds: float = option(
        "How long after the begin of one such reading the next one may begin, for runs that follow closely",
        60.0,
        minimum=0.0,
    )
    batch_cursors: Mapping[str, str] = option(
        "Of tables that are read in batches, by their full names, a field whose values only grow: after one "
        "reading in full, runs read documents whose value is the greatest one then, or a greater one",
        {},
    )
    batch_overlap_seconds: float = option(
        "How far before the last value a reading by such a field begins, if it is a time or an ObjectId: for "
        "values that come late",
        0.0,
        minimum=0.0,
    )
    batch_full_seconds: float = option(
        "How long after one reading in full of such a table the next one is due, which sees deletions and "
        "what came late; 0: never again",
        0.0,
        minimum=0.0,
    )
    copy: MongodbCopy = option("What is asked when collections are read in full", MongodbCopy)
    infer: MongodbInference = option("Columns by what documents turn out to have", MongodbInference)
    stream: MongodbStream = option("What is asked of the change stream", MongodbStream)
    advanced: MongodbAdvanced = option("Options that few users need", MongodbAdvanced)

    def in_batches(self, table: str) -> bool:
        """Tell whether a table is read at each run, and not streamed."""
        return any(re.fullmatch(pattern, table) for pattern in self.batch)

    def __post_init__(self) -> None:
        """Refuse options that don't go together; with scope deployment a target says nothing.

        Raises:
            ConfigurationError: With what fits.
        """
        database, _, collection = self.target.partition(".")
        if self.scope == "database" and (not database or collection):
            raise ConfigurationError(
                "option source.target is wrong",
                expected="a database for scope database",
                found=self.target or "none",
            )
        if self.scope == "collection" and not (database and collection):
            raise ConfigurationError(
                "option source.target is wrong",
                expected="database.collection for scope collection",
                found=self.target or "none",
            )
        if streamed := [table for table in self.batch_cursors if not self.in_batches(table)]:
            raise ConfigurationError(
                "option source.batch_cursors is of tables that are read in batches",
                expected="names that a pattern of source.batch selects",
                found=", ".join(streamed),
            )
        if self.full_document == "none" and self.copy.pipeline:
            raise ConfigurationError(
                "option source.copy.pipeline changes the documents that updates are applied to",
                expected="another source.full_document than none",
            )
        if self.full_document == "none" and self.stream.oversize == "skip":
            raise ConfigurationError(
                "option source.stream.oversize: skip leaves out updates, and with source.full_document: none "
                "those that follow would be applied to outdated documents",
                expected="oversize: split or fail, or another full_document",
            )
        if self.full_document == "none" and not self.stream.update_descriptions:
            raise ConfigurationError(
                "option source.stream.update_descriptions: false leaves nothing of updates",
                expected="another source.full_document than none",
            )
