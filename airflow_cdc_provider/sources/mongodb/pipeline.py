"""What is asked of the server: the change stream's pipeline, but for the place where it starts.

Its stages, in this order::

    $changeStream                   scope, documents, expanded events
    $match by size                  oversize: skip
    $match by namespace and kind    the built-in filter      } pipeline_order says which is first,
    the user's own stages                                    } or that there is no built-in one
    $unset of updateDescription     update_descriptions: false
    $changeStreamSplitLargeEvent    oversize: split, on servers that have it

The server applies a filter on namespaces that comes first to the oplog, before it makes events of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson import json_util
from bson.errors import BSONError

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions, MongodbStream
from airflow_cdc_provider.sources.mongodb.selection import Selection, event_filter, passing

Stages = list[dict[str, Any]]

LARGEST_EVENT: Final = 16 * 1024 * 1024 - 16 * 1024
"""Bytes of an event's parts together above which the event may not fit into the server's 16 MiB."""

SPLIT_SINCE: Final = (6, 0, 9)
"""First version with ``$changeStreamSplitLargeEvent``."""

_KINDS: Final = {"c": ("insert",), "u": ("update", "replace"), "d": ("delete",)}


def target(options: MongodbOptions) -> tuple[str, str | int]:
    """Return database and ``aggregate`` argument of the stream's scope."""
    if options.scope == "deployment":
        return "admin", 1
    database, _, collection = options.target.partition(".")
    return database, collection if options.scope == "collection" else 1


def stream_pipeline(options: MongodbOptions, selection: Selection | None, *, split: bool) -> Stages:
    """Build a change stream's pipeline.

    Args:
        options: What to watch and what events carry.
        selection: The captured namespaces, None if only the client knows them.
        split: Whether the server can split events over 16 MB.

    Raises:
        ConfigurationError: A value in the user's stages is no Extended JSON.
    """
    stream = options.stream
    stages: Stages = [{"$changeStream": _change_stream(options)}]
    if stream.oversize == "skip":
        stages.append({"$match": {"$expr": _small_enough(stream)}})
    stages += _chosen(options, selection)
    if not stream.update_descriptions:
        stages.append({"$unset": ["updateDescription"]})
    if split and stream.oversize == "split":
        stages.append({"$changeStreamSplitLargeEvent": {}})
    return stages


def large_events(options: MongodbOptions, selection: Selection | None) -> Stages:
    """Build the pipeline that shows of events over 16 MB, and of no others, what and how large they are."""
    shown = {"ns": 1, "operationType": 1, "clusterTime": 1, "bytes": _event_size(options.stream)}
    return [
        {"$changeStream": _change_stream(options)},
        *_chosen(options, selection),
        {"$project": shown},
        {"$match": {"bytes": {"$gt": LARGEST_EVENT}}},
    ]


def user_stages(stages: Sequence[Mapping[str, Any]], name: str) -> Stages:
    """Return a user's stages with what Extended JSON stands for.

    Args:
        stages: The stages.
        name: The option that has them.

    Raises:
        ConfigurationError: A value is no Extended JSON.
    """
    try:
        return [dict(json_util.loads(json.dumps(stage))) for stage in stages]
    except (ValueError, TypeError, BSONError) as error:
        raise ConfigurationError(f"option {name} is no Extended JSON", found=str(error)[:200]) from None


def describe_pipeline(stages: Stages) -> str:
    """Write a pipeline as one line of Extended JSON."""
    return json_util.dumps(stages, json_options=json_util.RELAXED_JSON_OPTIONS)


def _change_stream(options: MongodbOptions) -> dict[str, Any]:
    stage: dict[str, Any] = {}
    if options.scope == "deployment":
        stage["allChangesForCluster"] = True
    if options.full_document == "lookup":
        stage["fullDocument"] = "updateLookup"
    elif options.full_document == "post_image":
        stage["fullDocument"] = "whenAvailable"
    if options.pre_images:
        stage["fullDocumentBeforeChange"] = "whenAvailable"
    if options.stream.expanded_events:
        stage["showExpandedEvents"] = True
    return stage


def _chosen(options: MongodbOptions, selection: Selection | None) -> Stages:
    """Return the built-in filter and the user's stages in the order that is asked for."""
    stream = options.stream
    stages = user_stages(options.stream.pipeline, "source.stream.pipeline")
    own = [_sparing(stage, passing(selection)) for stage in stages]
    if stream.pipeline_order == "user_only":
        return own
    skipped = [kind for operation in stream.skipped_operations for kind in _KINDS[operation]]
    built_in = {
        "$match": event_filter(
            selection,
            skipped=skipped,
            expanded=stream.expanded_events,
            collated=bool(stream.collation),
        )
    }
    return [built_in, *own] if stream.pipeline_order == "internal_first" else [*own, built_in]


def _sparing(stage: dict[str, Any], always: Stages) -> dict[str, Any]:
    """Let drops, renames, the end of a stream, and signals pass a filter: it means other documents."""
    if "$match" not in stage:
        return stage
    return {"$match": {"$or": [*always, stage["$match"]]}}


def _small_enough(stream: MongodbStream) -> dict[str, Any]:
    documents = [
        {"$lte": [_size(f"${name}"), stream.skip_over_bytes]}
        for name in ("fullDocument", "fullDocumentBeforeChange")
    ]
    # Two documents below the limit can make an event that no reply holds.
    return {"$and": [*documents, {"$lte": [_event_size(stream), LARGEST_EVENT]}]}


def _event_size(stream: MongodbStream) -> dict[str, Any]:
    """Build the expression of an event's size; the token holds the key once more, in hexadecimal."""
    parts = ["fullDocument", "fullDocumentBeforeChange", *["documentKey"] * 3]
    if stream.update_descriptions:
        parts.append("updateDescription")
    return {"$add": [_size(f"${name}") for name in parts]}


def _size(path: str) -> dict[str, Any]:
    return {"$ifNull": [{"$bsonSize": path}, 0]}
