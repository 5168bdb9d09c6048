"""Options of signals, and of the snapshots beside the stream that they ask for. Light: read by DAG files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.signals.names import check_names
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions


def _namespace(value: str) -> str:
    database, _, collection = value.partition(".")
    return "" if not value or (database and collection) else "database.collection"


@dataclass(frozen=True)
class SignalOptions:
    """How a running connector is told what to do."""

    channels: tuple[str, ...] = option(
        "Ways by which signals come. source: documents inserted into `collection`; file: lines of `file`; "
        "airflow: CdcSignalOperator and airflow cdc signal; package.module:Class: a channel of your own",
        ("source", "airflow"),
        check=check_names,
    )
    collection: str = option(
        "MongoDB's database.collection that channel source watches; captured whatever `tables` says",
        "",
        check=_namespace,
    )
    file: str = option(
        "File of channel file, on the machine of Spark's driver; a relative path lies in the connector's "
        "folder of the work folder",
        "file-signals.txt",
    )
    poll_interval_seconds: float = option(
        "How often channels but source are read while a stream runs", 5.0, minimum=0.0
    )
    settings: Mapping[str, Any] = option("Settings of channels of your own", {})


@dataclass(frozen=True)
class IncrementalOptions:
    """How a snapshot beside the stream reads."""

    chunk_size: int = option("Rows asked of the source at a time", 1024, minimum=1)
    chunks_per_commit: int = option(
        "Chunks that one commit takes; 0: as many as it reads in some seconds", 0, minimum=0
    )
    seconds_per_run: float = option(
        "How long a sync reads at most, before it merges and ends; the next one goes on. 0: until all is "
        "read. A stream reads as long as its commit interval, then captures and merges",
        0.0,
        minimum=0.0,
    )
    watermarks: Literal["none", "insert_insert", "insert_delete"] = option(
        "Documents written to signals.collection around each chunk: a user needs the right to. none: the "
        "order of events needs none",
        "none",
    )


def refuse_signals_that_cannot_come(
    source: object, signals: SignalOptions, incremental: IncrementalOptions
) -> None:
    """Refuse options of which signals would never arrive, or whose snapshots could not be taken.

    Raises:
        ConfigurationError: With what goes together.
    """
    if incremental.watermarks != "none" and not signals.collection:
        raise ConfigurationError(
            f"option snapshot.incremental.watermarks: {incremental.watermarks} needs a place to write to",
            expected="signals.collection",
        )
    if not signals.collection:
        return
    if not isinstance(source, MongodbOptions):
        raise ConfigurationError(
            "option signals.collection is for source mongodb", expected="signals by channel file or airflow"
        )
    database = signals.collection.partition(".")[0]
    if source.scope == "database" and database != source.target:
        raise ConfigurationError(
            "option signals.collection is outside of what the change stream watches",
            expected=f"a collection of the database {source.target}",
            found=signals.collection,
        )
    if source.scope == "collection" and signals.collection != source.target:
        raise ConfigurationError(
            "option signals.collection is outside of what the change stream watches",
            expected="source.scope deployment or database, or signals by channel file or airflow",
            found=f"scope collection of {source.target}",
        )
