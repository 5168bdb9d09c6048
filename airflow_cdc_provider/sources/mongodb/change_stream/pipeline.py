"""Builds the change stream's pipeline, without its start position.

Its stages, in this order::

    $changeStream                   scope, documents, expanded events
    $match by size                  oversize: skip
    $match by namespace and kind    the built-in filter      } pipeline_order determines their order,
    custom stages                                            } or omits the built-in filter
    $unset of updateDescription     update_descriptions: false
    $changeStreamSplitLargeEvent    oversize: split, on servers that have it

If the filter on namespaces comes first, the server applies it to the oplog, before it creates events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson import json_util
from bson.errors import BSONError

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions, MongodbStream
from airflow_cdc_provider.sources.mongodb.selection import Selection, always_passing, event_filter

Stages = list[dict[str, Any]]

LARGEST_EVENT: Final = 16 * 1024 * 1024 - 16 * 1024
"""Total bytes of an event's parts above which the event may exceed the server's limit of 16 MiB."""

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
        options: The source's options.
        selection: The captured namespaces; None if the server can't filter by them.
        split: Whether the server can split events over 16 MB.

    Raises:
        ConfigurationError: A value in the custom stages is not valid Extended JSON.
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
    """Build a pipeline that returns namespace, operation, time and size of events over 16 MB only."""
    projection = {"ns": 1, "operationType": 1, "clusterTime": 1, "bytes": _event_size(options.stream)}
    return [
        {"$changeStream": _change_stream(options)},
        *_chosen(options, selection),
        {"$project": projection},
        {"$match": {"bytes": {"$gt": LARGEST_EVENT}}},
    ]


def user_stages(stages: Sequence[Mapping[str, Any]], name: str) -> Stages:
    """Return custom stages with their Extended JSON decoded.

    Args:
        stages: The stages.
        name: Name of their option.

    Raises:
        ConfigurationError: A value is not valid Extended JSON.
    """
    try:
        return [dict(json_util.loads(json.dumps(stage))) for stage in stages]
    except (ValueError, TypeError, ArithmeticError, RecursionError, BSONError) as error:
        raise ConfigurationError(
            f"option {name} is not valid Extended JSON", found=str(error)[:200]
        ) from None


def describe_pipeline(stages: Stages) -> str:
    """Return a pipeline as one line of Extended JSON."""
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
    """Return the built-in filter and the custom stages in the configured order."""
    stream = options.stream
    stages = user_stages(options.stream.pipeline, "source.stream.pipeline")
    own = [_exempt_always_passing(stage, always_passing(selection)) for stage in stages]
    if stream.pipeline_order == "user_only":
        return own
    skipped = [kind for operation in stream.skipped_operations for kind in _KINDS[operation]]
    built_in = {
        "$match": event_filter(
            selection, skipped=skipped, expanded=stream.expanded_events, collated=bool(stream.collation)
        )
    }
    return [built_in, *own] if stream.pipeline_order == "internal_first" else [*own, built_in]


def _exempt_always_passing(stage: dict[str, Any], always: Stages) -> dict[str, Any]:
    """Let drops, renames, invalidates and signals pass a custom filter, which is about documents."""
    if "$match" not in stage:
        return stage
    return {"$match": {"$or": [*always, stage["$match"]]}}


def _small_enough(stream: MongodbStream) -> dict[str, Any]:
    documents = [
        {"$lte": [_size(f"${name}"), stream.skip_threshold_bytes]}
        for name in ("fullDocument", "fullDocumentBeforeChange")
    ]
    # Two documents below the limit can still result in an event that exceeds a reply.
    return {"$and": [*documents, {"$lte": [_event_size(stream), LARGEST_EVENT]}]}


def _event_size(stream: MongodbStream) -> dict[str, Any]:
    """Build the expression of an event's size; the token contains the key again, in hexadecimal."""
    parts = ["fullDocument", "fullDocumentBeforeChange", *["documentKey"] * 3]
    if stream.update_descriptions:
        parts.append("updateDescription")
    return {"$add": [_size(f"${name}") for name in parts]}


def _size(path: str) -> dict[str, Any]:
    return {"$ifNull": [{"$bsonSize": path}, 0]}
