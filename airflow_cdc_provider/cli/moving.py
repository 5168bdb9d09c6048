"""``airflow cdc plan-move``: what becomes of a Debezium connector, before anything is changed.

It reads the connector's properties and, if given, the offsets that it has stored; tells what will differ; and
writes the declaration. Nothing is stored, and no server is written to. Vitess without a list of shards, and
ScyllaDB, are asked for their streams: only they tell where stored offsets are.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.cli.debezium_offsets import Imported as ImportedOffset
from airflow_cdc_provider.cli.running import command
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.sources.debezium.options import FRAMED, DebeziumOptions

_PAGES: Final[Mapping[str, str]] = {
    "mongodb": "docs/moving-to-mongodb.md",
    "cassandra": "docs/moving-to-cassandra.md",
    "vitess": "docs/moving-to-vitess.md",
    "scylla": "docs/moving-to-scylla.md",
    "debezium": "docs/source-debezium.md",
}
_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "mongodb": ("database", "collection"),
    "cassandra": ("keyspace", "table"),
    "vitess": ("keyspace", "table"),
    "scylla": ("keyspace", "table"),
}
_SHOWN_OFFSET: Final = 2_000


@command
def plan_move(args: Namespace) -> None:
    """Tell what becomes of a connector, and write its declaration."""
    from airflow_cdc_provider.connector.datastax import is_datastax
    from airflow_cdc_provider.connector.debezium_review import review
    from airflow_cdc_provider.properties_file import read_settings

    properties = read_settings(read(args.connector).decode(errors="replace"))
    if is_datastax(properties):
        raise ConfigurationError(
            f"{args.connector} has settings of DataStax's agent or connector",
            expected="properties of a Debezium connector",
            remedy="airflow cdc check --connector reads them as they are: docs/moving-to-cassandra.md",
        )
    found = review(properties)
    connector = with_connections(
        found.imported.connector, args.conn_id, args.kafka_conn_id, args.registry_conn_id
    )
    for title, lines in (
        ("Properties that are taken over, and the options that they set", told(found.of("taken over"))),
        ("Properties that are left out, and why", told(found.of("left out"))),
        ("Properties that can't be followed, and what to do", told(found.of("refused"))),
        ("Further", list(found.notes)),
        ("Topics and events", list(topics_and_events(connector))),
        ("Where it goes on", list(position(connector, args))),
    ):
        _print(title, lines)
    refused = [one.name for one in found.of("refused")]
    if args.output:
        if refused and not args.without_refused:
            raise ConfigurationError(
                f"no declaration is written: {', '.join(refused)} can't be followed",
                remedy="change them in the file, or pass --without-refused, which leaves them out",
            )
        write(Path(args.output), connector, args.connector, refused)
    _print("Next", list(next_steps(connector, args)))


def told(verdicts: list[Any]) -> list[str]:
    """Write verdicts as lines."""
    width = min(max((len(one.name) for one in verdicts), default=0), 44)
    return [f"{one.name:<{width}}  {one.text}" for one in verdicts]


def with_connections(connector: Connector, conn_id: str, kafka: str, registry: str) -> Connector:
    """Return a connector that names the Airflow connections which stand for addresses and logins.

    Args:
        connector: As its properties say.
        conn_id: Of the source; empty: none.
        kafka: Of the brokers; empty: it publishes nothing.
        registry: Of the schema registry; empty: none.

    Raises:
        ConfigurationError: One doesn't go with the rest.
    """
    values = connector.to_dict()
    if connector.type == "debezium":
        source = values["source"]
        if kafka or conn_id:
            source["conn_id"] = kafka or conn_id
        if registry and {source.get("key_converter"), source.get("value_converter")} & set(FRAMED):
            source["registry"] = {**source.get("registry", {}), "connection": registry}
        return Connector.from_dict(values)
    if conn_id:
        values.setdefault("source", {})["conn_id"] = conn_id
    for name, given in (("kafka", kafka), ("registry", registry)):
        if given:
            publish = values.setdefault("publish", {})
            publish[name] = {**publish.get(name, {}), "connection": given}
    return Connector.from_dict(values)


def topics_and_events(connector: Connector) -> Iterator[str]:
    """Tell names of topics and the form of events, which stay as they are."""
    if isinstance(connector.source, DebeziumOptions):
        yield from _topics_that_are_read(connector.source)
        return
    publish, prefix = connector.publish, connector.topic_prefix
    database, table = _NAMES[connector.type]
    if publish.topic_naming:
        yield f"topics stay: named by {publish.topic_naming}"
    elif publish.topic_pattern:
        yield f"topics stay: {publish.topic_pattern}"
    else:
        parts = publish.topic_delimiter.join((prefix, f"<{database}>", f"<{table}>"))
        yield f"topics stay: {parts}"
    if publish.transactions:
        yield f"transactions stay: {prefix}{publish.topic_delimiter}{publish.transaction_topic}"
    forms = [
        f"{side}: {form} with schemas" if publish.schemas and form == "json" else f"{side}: {form}"
        for side, form in (("keys", publish.key), ("values", publish.value))
    ]
    yield f"{'; '.join(forms)}; envelope: {publish.envelope}"
    if publish.unwrap.enabled:
        yield "rows without an envelope, as ExtractNewDocumentState gives them"
    if publish.transforms:
        yield f"transforms: {', '.join(type(one).__name__ for one in publish.transforms)}"
    yield f"a tombstone after each delete: {'yes' if publish.tombstones else 'no'}"
    if publish.skipped_operations:
        yield f"events left out: {', '.join(publish.skipped_operations)}"
    yield "new: records are sent in transactions, isolation.level=read_committed sees each event once"
    yield f"new: a topic of positions, {prefix}.cdc-positions"
    yield f"what differs besides: {_PAGES[connector.type]}"


def _topics_that_are_read(source: DebeziumOptions) -> Iterator[str]:
    """Tell what of a connector that stays is read."""
    yield "the connector stays, with its topics: mirrors are made of them"
    yield f"topics: {', '.join(source.topics)}"
    yield f"keys: {source.key_converter}; values: {source.value_converter}; envelope: {source.envelope}"
    yield f"how they are read: {_PAGES['debezium']}"


def position(connector: Connector, args: Namespace) -> Iterator[str]:
    """Tell where capture goes on, by the offsets that Debezium has stored."""
    if isinstance(connector.source, DebeziumOptions):
        yield f"topics are read from where source.start says: {connector.source.start}"
        if args.offsets:
            yield f"{args.offsets} is where Debezium has read its database to, which stays its own affair"
        return
    if not args.offsets:
        yield "no offsets are given (--offsets): capture begins as a new connector does"
        return
    try:
        found = stored(connector, read(args.offsets), args)
    except CdcError as error:
        yield f"that can't be told: {str(error).removeprefix(f'[CDC-{error.code}] ')}"
        return
    if found.offset is None:
        yield "capture begins as a new connector does"
    else:
        text = json.dumps(found.offset, sort_keys=True)
        yield text if len(text) <= _SHOWN_OFFSET else f"{text[:_SHOWN_OFFSET]} ..."
    yield from found.remarks
    if connector.snapshot.mode != "never":
        yield (
            "mirrors are filled by a snapshot first; its rows are events r, which consumers have already: "
            "publish.skipped_operations: [r] leaves them out of topics, snapshot.mode: never out of mirrors"
        )


def stored(connector: Connector, content: bytes, args: Namespace) -> ImportedOffset:
    """Read stored offsets.

    Raises:
        ConfigurationError: The file has none of this connector.
        TransientError: A server was to be asked, and doesn't answer.
    """
    from airflow_cdc_provider.cli.debezium_offsets import imported

    found = imported(
        connector, content, allow_invalidation=args.allow_offset_invalidation, host_id=args.host_id
    )
    if found is None:
        raise ConfigurationError(
            f"{args.offsets} has no offset that Debezium stores", expected="what offsets import takes"
        )
    return found


def write(path: Path, connector: Connector, origin: str, refused: list[str]) -> None:
    """Write a declaration, unless there is a file already.

    Raises:
        ConfigurationError: There is, or it can't be written.
    """
    import yaml

    from airflow_cdc_provider.connector import load_connector

    head = [f"# Made of {Path(origin).name} by airflow cdc plan-move."]
    head += [f"# Left out, for it can't be followed: {name}" for name in refused]
    head += ["# Where mirrors are kept, option lake, is yours to say: docs/quickstart.md", ""]
    text = "\n".join(head) + yaml.safe_dump(connector.to_dict(), sort_keys=False, allow_unicode=True)
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written", found=error.strerror or str(error)) from error
    load_connector(path)


def next_steps(connector: Connector, args: Namespace) -> Iterator[str]:
    """Name the commands that follow."""
    declared = args.output or "FILE.yaml"
    stays = isinstance(connector.source, DebeziumOptions)
    if not args.output:
        yield "write the declaration: the same command with --output FILE.yaml"
    if stays and not connector.source.conn_id:
        yield "name the brokers' Airflow connection: --kafka-conn-id, option source.conn_id"
    if not stays and not args.conn_id:
        yield "name the source's Airflow connection: --conn-id, option source.conn_id"
    if not stays and not connector.publish.enabled:
        yield "name the brokers' Airflow connection: --kafka-conn-id, option publish.kafka.connection"
    yield f"airflow cdc check --connector {declared}"
    if stays:
        return
    if args.offsets:
        more = " --allow-offset-invalidation" if args.allow_offset_invalidation else ""
        more += f" --host-id {args.host_id}" if args.host_id else ""
        yield f"airflow cdc offsets import --connector {declared} --file {args.offsets}{more}"
    yield "steps, both side by side, the switch and the way back: docs/moving-from-debezium.md"


def read(path: str) -> bytes:
    """Read a file.

    Raises:
        ConfigurationError: It can't be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read", found=error.strerror or str(error)) from error


def _print(title: str, lines: list[str]) -> None:
    if lines:
        sys.stdout.write("\n".join([title, *(f"  {line}" for line in lines), "", ""]))
