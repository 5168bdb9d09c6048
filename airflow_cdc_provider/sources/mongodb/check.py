"""Verifies a MongoDB deployment's prerequisites for capture. Problems are findings, not exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from bson.timestamp import Timestamp
from pymongo import MongoClient, errors, timeout

from airflow_cdc_provider.exceptions import CdcError, PositionLost, listed
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.findings import login_findings, name_findings, verification_findings
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream
from airflow_cdc_provider.sources.mongodb.change_stream.pipeline import SPLIT_SINCE
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec, field_counts
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    await_server,
    cluster_time,
    encrypted,
)
from airflow_cdc_provider.sources.mongodb.driver.oplog import BEGIN, oldest_time
from airflow_cdc_provider.sources.mongodb.driver.server_errors import UNAUTHORIZED, translated
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition, describe
from airflow_cdc_provider.sources.mongodb.schema_sample import sample_schema
from airflow_cdc_provider.sources.mongodb.selection import OWN_DATABASES, Selection, is_captured, literal_name

_OLDEST_SERVER: Final = (4, 4)
_CAPPED_DELETES_SINCE: Final = (6, 0)
_IMAGES_SINCE: Final = (6, 0)
_EXACT_READS_SINCE: Final = (5, 0)
_SHORT_WINDOW_SECONDS: Final = 3600
_SAMPLED: Final = 100
_SAMPLE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class CollectionFacts:
    """What ``listCollections`` returns for one selected namespace.

    Args:
        name: ``database.collection``.
        type: ``collection``, ``view`` or ``timeseries``.
        capped: Whether the collection is capped; None if the user may list names only.
        images: Whether pre- and post-images are recorded; None if the user may list names only.
    """

    name: str
    type: str
    capped: bool | None
    images: bool | None


def list_collections(
    client: MongoClient, options: MongodbOptions, selects: Callable[[str], bool]
) -> list[CollectionFacts]:
    """List the selected namespaces inside the scope, sorted by name, views and time series included.

    A user without the privilege ``listCollections`` gets the authorized collections only, with name and type.

    Raises:
        CdcError: The server is unreachable, or refuses the command.
    """
    found = []
    with translated("collections can't be listed"):
        if options.scope == "deployment":
            databases = [d for d in client.list_database_names() if d not in OWN_DATABASES]
        else:
            databases = [options.target.partition(".")[0]]
        for database in databases:
            for facts in _facts_of_database(client, database):
                if options.scope == "collection" and facts.name != options.target:
                    continue
                if is_captured(facts.name, selects):
                    found.append(facts)
    return sorted(found, key=lambda facts: facts.name)


def _facts_of_database(client: MongoClient, database: str) -> Iterator[CollectionFacts]:
    try:
        entries = list(client[database].list_collections())
    except errors.OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        entries = list(client[database].list_collections(nameOnly=True, authorizedCollections=True))
    for entry in entries:
        name = f"{database}.{entry['name']}"
        details = entry.get("options")
        if details is None:
            yield CollectionFacts(name, entry["type"], None, None)
        else:
            images = bool(details.get("changeStreamPreAndPostImages", {}).get("enabled"))
            yield CollectionFacts(name, entry["type"], bool(details.get("capped")), images)


def check_deployment(
    values: ConnectionValues,
    options: MongodbOptions,
    selects: Callable[[str], bool],
    offset: StreamPosition | None,
) -> list[Finding]:
    """Verify all prerequisites, in an order in which the first error usually explains the others.

    Args:
        values: The connection.
        options: The source's options.
        selects: Whether a namespace belongs to the capture.
        offset: The stored position, None if there is none yet.
    """
    try:
        client = values.client()
    except CdcError as error:
        return [_failed("connection", error)]
    try:
        findings = [*_chosen(values, client, options), *_server(client, options)]
        if any(finding.level == "error" for finding in findings):
            return findings
        findings += _collections(client, options, selects)
        findings += _stream(values, client, options, selects, offset)
        return findings
    finally:
        client.close()


def _failed(subject: str, error: CdcError) -> Finding:
    message = ": ".join(part for part in (error.message, error.found) if part)
    required = f"required: {error.expected}" if error.expected else ""
    remedy = "; ".join(part for part in (required, error.remedy) if part)
    return Finding("error", subject, message, remedy or "see the server's log")


def _chosen(values: ConnectionValues, client: MongoClient, options: MongodbOptions) -> Iterator[Finding]:
    """Verify the options, without a server."""
    if options.scope == "deployment" and options.target:
        yield Finding(
            "warning",
            "scope",
            f"target {options.target} has no effect with scope deployment, which watches all databases",
            "choose scope database or collection, or remove target",
        )
    yield from login_findings(values.servers, login=values.has_login, encrypted=encrypted(client))
    yield from verification_findings(values.unverified)
    if skipped := ", ".join(options.stream.skipped_operations):
        yield Finding(
            "warning",
            "skipped operations",
            f"the server leaves out operations {skipped}: mirrors lack them",
            "to leave out published events only, use publish.skipped_operations",
        )


def _server(client: MongoClient, options: MongodbOptions) -> Iterator[Finding]:
    try:
        limit = options.advanced.validation_timeout_seconds
        with translated("the MongoDB server is not usable"):
            await_server(client)
        with translated("the MongoDB server is not usable"), timeout(limit):
            hello = client.admin.command("hello")
            version = tuple(client.server_info()["versionArray"][:3])
    except CdcError as error:
        yield _failed("connection", error)
        return
    text = ".".join(str(part) for part in version)
    yield Finding("ok", "connection", f"connected to MongoDB {text}")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        yield Finding(
            "error",
            "topology",
            "the server is a standalone server, which has no oplog and no change streams",
            "restart it with --replSet and run rs.initiate(): a set of one member is enough",
        )
        return
    name = hello.get("setName")
    if name and not client.options.replica_set_name:
        yield Finding(
            "error",
            "topology",
            f"the connection doesn't name its replica set, {name}, so it would accept any other set",
            f"add replicaSet={name} to the connection string, or replicaSet to the connection's extra",
        )
        return
    yield Finding("ok", "topology", f"replica set {name}" if name else "sharded cluster")
    if version < _OLDEST_SERVER:
        yield Finding("error", "version", f"MongoDB {text} is too old", "use MongoDB 4.4 or later")
        return
    if version < SPLIT_SINCE and options.stream.oversize == "split":
        yield Finding(
            "warning",
            "version",
            f"MongoDB {text} can't split change events over 16 MB: one such event stops the capture",
            "use MongoDB 6.0.9 or later, or source.stream.oversize: skip",
        )
    if version < _EXACT_READS_SINCE and options.full_document == "none":
        yield Finding(
            "error",
            "version",
            f"MongoDB {text} has no snapshot reads at a cluster time, which full_document: none requires",
            "use MongoDB 5.0 or later, or a full_document other than none",
        )
    if version < _IMAGES_SINCE and options.stream.expanded_events:
        yield Finding(
            "error",
            "version",
            f"MongoDB {text} has no expanded events",
            "use MongoDB 6.0 or later, or remove source.stream.expanded_events",
        )


def _collections(
    client: MongoClient, options: MongodbOptions, selects: Callable[[str], bool]
) -> Iterator[Finding]:
    try:
        facts = list_collections(client, options, selects)
    except CdcError as error:
        yield _failed("collections", error)
        return
    captured = [f for f in facts if f.type == "collection"]
    if captured:
        yield Finding("ok", "collections", f"{len(captured)} selected: {_names(captured)}")
    else:
        yield Finding(
            "warning",
            "collections",
            "no existing collection is selected",
            "check the patterns in tables and exclude_tables, and scope and target",
        )
    missing = _missing(selects, facts)
    if missing and captured:
        yield Finding(
            "warning", "collections", f"not found: {', '.join(missing)}", "check the names in tables"
        )
    others = [f for f in facts if f.type != "collection" and not options.in_batches(f.name)]
    if batches := [f for f in facts if options.in_batches(f.name)]:
        yield Finding("ok", "batches", f"read in batches: {_names(batches)}")
        yield from _cursor_indexes(client, options, batches)
    named = [f for f in others if f.name in _literal_names(options, selects)]
    if named:
        yield Finding(
            "error",
            "views",
            f"views and time series have no change streams: {_names(named)}",
            "capture the underlying collections of views; or read views and time series in full at each run: "
            "option source.batch",
        )
    if left_out := [f for f in others if f not in named]:
        yield Finding(
            "warning",
            "views",
            f"views and time series have no change streams and are left out: {_names(left_out)}",
            "select their underlying collections, exclude them, or read them in full at each run: option "
            "source.batch",
        )
    capped = [f for f in captured if f.capped]
    if capped and tuple(client.server_info()["versionArray"][:2]) < _CAPPED_DELETES_SINCE:
        yield Finding(
            "warning",
            "capped collections",
            f"the server may emit no events when it removes old documents, so mirrors keep them: "
            f"{_names(capped)}",
            "take a new snapshot regularly, or exclude them",
        )
    if capped and options.full_document == "none":
        yield Finding(
            "warning",
            "capped collections",
            "the server can't read them at a cluster time: updates that a snapshot has may be applied again, "
            f"which may change the order of members: {_names(capped)}",
            "use another full_document, or exclude them",
        )
    if options.full_document == "post_image" or options.pre_images:
        yield from _images(client, options, captured)
    yield from _readable(client, captured)
    read = [f.name for f in facts if f.type == "collection" or options.in_batches(f.name)]
    inferred = [name for name in read if options.infer.includes(name)]
    yield from name_findings({name: _inferred_names(client, options, name) for name in inferred})


def _cursor_indexes(
    client: MongoClient, options: MongodbOptions, batches: Sequence[CollectionFacts]
) -> Iterator[Finding]:
    """Report cursor fields without an index; time series need none, as their buckets have bounds."""
    for facts in batches:
        field = options.batch_cursors.get(facts.name)
        if field is None or facts.type != "collection":
            continue
        database, _, name = facts.name.partition(".")
        try:
            with translated(f"indexes of {facts.name} can't be listed"):
                leading = {next(iter(index["key"])) for index in client[database][name].list_indexes()}
        except CdcError as error:
            yield Finding("warning", "batches", str(error), "grant listIndexes, as the role read does")
            continue
        if field not in leading:
            yield Finding(
                "warning",
                "batches",
                f"{facts.name} is read by {field}, but no index starts with it: reads scan all documents",
                f'db.getCollection("{name}").createIndex({{"{field}": 1}})',
            )


def _images(
    client: MongoClient, options: MongodbOptions, captured: Sequence[CollectionFacts]
) -> Iterator[Finding]:
    if tuple(client.server_info()["versionArray"][:2]) < _IMAGES_SINCE:
        yield Finding(
            "error",
            "pre- and post-images",
            "the server can't record them",
            "use MongoDB 6.0 or later, or full_document: lookup",
        )
        return
    if unknown := [f for f in captured if f.images is None]:
        yield Finding(
            "warning",
            "pre- and post-images",
            f"the user may not read whether they are recorded for {_names(unknown)}",
            "grant listCollections on the database, or verify with db.getCollectionInfos() as an admin",
        )
    without = [f for f in captured if f.images is False]
    if not without and not unknown:
        yield Finding("ok", "pre- and post-images", "recorded for all selected collections")
    if not without:
        return
    needed = options.full_document == "post_image"
    yield Finding(
        "error" if needed else "warning",
        "pre- and post-images",
        f"not recorded for {_names(without)}: "
        + (
            "their updates have no document" if needed else "their changes have no document before the change"
        ),
        "for each: db.runCommand({collMod: <collection>, changeStreamPreAndPostImages: {enabled: true}})",
    )


def _inferred_names(client: MongoClient, options: MongodbOptions, table: str) -> list[tuple[str, str]]:
    """Return the fields in some documents of a collection, and the names of their inferred columns."""
    try:
        found = sample_schema(client, table, size=_SAMPLED, seconds=_SAMPLE_SECONDS, depth=1)
    except CdcError:
        return []  # reported as unreadable
    codec = MongodbCodec.of(table, options).learn(pa.Table.from_batches([field_counts(found.fields)]))
    return [(one.name, one.column) for one in codec.inferred.fields] if codec.inferred else []


def _readable(client: MongoClient, captured: Sequence[CollectionFacts]) -> Iterator[Finding]:
    refused = []
    for facts in captured:
        database, _, collection = facts.name.partition(".")
        try:
            client[database].command("find", collection, limit=1, projection={"_id": 1}, singleBatch=True)
        except errors.OperationFailure as error:
            refused.append((facts, error))
        except errors.PyMongoError as error:
            yield Finding("error", "reading", f"{facts.name} can't be read: {type(error).__name__}", "retry")
            return
    if refused:
        yield Finding(
            "error",
            "reading",
            f"the user may not read {_names([facts for facts, _ in refused])} (error {refused[0][1].code})",
            "grant the role read on the database, or readAnyDatabase",
        )


def _stream(
    values: ConnectionValues,
    client: MongoClient,
    options: MongodbOptions,
    selects: Callable[[str], bool],
    offset: StreamPosition | None,
) -> Iterator[Finding]:
    stream = ChangeStream(values, options, selects if isinstance(selects, Selection) else None)
    try:
        now = cluster_time(client)
        stream.open_at(StreamPosition.after(now))
        yield Finding("ok", "change stream", f"opens for scope {options.scope}: {stream.described}")
        if offset is not None:
            stream.open_at(offset)
            yield Finding("ok", "stored offset", f"the stream resumes after {describe(offset)}")
        yield from _window(oldest_time(client, stream.accepts, now), now, offset)
    except PositionLost as error:
        yield _failed("stored offset", error)
    except CdcError as error:
        yield _failed("change stream", error)
    finally:
        stream.close()


def _window(oldest: Timestamp, now: Timestamp, offset: StreamPosition | None) -> Iterator[Finding]:
    if oldest == BEGIN:
        yield Finding("ok", "oplog window", "the oplog has all changes since the replica set was initiated")
        return
    window = now.time - oldest.time
    text = f"the oplog covers {_duration(window)}"
    if offset is not None:
        margin = offset.seconds - oldest.time
        text += f", {_duration(max(margin, 0))} of it before the stored offset"
        short = margin < min(_SHORT_WINDOW_SECONDS, window // 4)
    else:
        short = window < _SHORT_WINDOW_SECONDS
    if not short:
        yield Finding("ok", "oplog window", text)
        return
    yield Finding(
        "warning",
        "oplog window",
        text,
        "capture more often, or keep more oplog: replSetResizeOplog with a larger size or minRetentionHours "
        "(the window of a new server grows with time)",
    )


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def _missing(selects: Callable[[str], bool], facts: Sequence[CollectionFacts]) -> list[str]:
    if not isinstance(selects, Selection):
        return []
    names = {f.name for f in facts}
    required = {name for pattern in selects.tables if (name := literal_name(pattern))}
    return sorted(required - names)


def _literal_names(options: MongodbOptions, selects: Callable[[str], bool]) -> set[str]:
    """Return the namespaces that the declaration names literally, not by a pattern."""
    patterns = selects.tables if isinstance(selects, Selection) else ()
    target = {options.target} if options.scope == "collection" else set()
    return {name for pattern in patterns if (name := literal_name(pattern))} | target


def _names(facts: Sequence[CollectionFacts]) -> str:
    return listed([f.name for f in facts])
