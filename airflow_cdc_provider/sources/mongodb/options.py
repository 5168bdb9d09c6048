"""Options of a MongoDB source. Light: read by DAG files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class MongodbAdvanced:
    """Options that few users need."""

    batch_events: int = option("Change events asked of the server at a time", 10_000, minimum=1)
    ranges_per_snapshot: int = option(
        "_id ranges that a collection's snapshot is cut into, at least", 8, minimum=1
    )
    strict: bool = option("Fail on the first broken or undecodable event instead of setting it apart", False)
    max_await_seconds: float = option(
        "How long the server may wait for news before it answers", 1.0, minimum=0.0
    )
    connect_timeout_seconds: float = option("How long to look for a usable server", 10.0, minimum=0.1)


@dataclass(frozen=True)
class MongodbOptions:
    """What to watch and what each event carries."""

    conn_id: str = option("Airflow connection of the deployment; not needed offline", "")
    scope: Literal["deployment", "database", "collection"] = option(
        "What one change stream watches", "deployment"
    )
    target: str = option("Scope database: its name; scope collection: database.collection", "")
    full_document: Literal["lookup", "post_image", "none"] = option(
        "Where the whole document of an update comes from: the server's look-up, the post-image, nowhere",
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
    advanced: MongodbAdvanced = option("Options that few users need", MongodbAdvanced)
