"""``airflow cdc migrate plan``: how the settings of a Debezium connector translate.

The command reads the connector's properties and, if given, its stored offsets; reports all differences; and
writes the connector declaration. It stores nothing else and writes to no server. It connects to Vitess
(unless shards are configured) and ScyllaDB, whose streams are needed to translate stored offsets.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.cli.running import command, connect_offsets_of, write
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, printable
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from airflow_cdc_provider.migration.offsets.conversion import ImportedOffset

_MAX_PRINTED_OFFSET: Final = 2_000


@command
def plan(args: Namespace) -> None:
    """Report how a connector's settings translate, and write a declaration."""
    from airflow_cdc_provider.migration.datastax import is_datastax
    from airflow_cdc_provider.migration.debezium.review import review
    from airflow_cdc_provider.migration.settings_file import read_settings

    properties = read_settings(read(args.connector).decode(errors="replace"))
    if is_datastax(properties):
        raise ConfigurationError(
            f"{args.connector} is a configuration of DataStax's agent or connector",
            expected="configuration of a Debezium connector",
            remedy="airflow cdc check --connector accepts it directly: docs/moving-to-cassandra.md",
        )
    reviewed = review(properties)
    connector = with_connections(
        reviewed.imported.connector, args.conn_id, args.kafka_conn_id, args.registry_conn_id
    )
    for title, lines in (
        ("Imported properties and the options that they set", formatted(reviewed.of("imported"))),
        ("Ignored properties and why", formatted(reviewed.of("ignored"))),
        ("Unsupported properties and what to do", formatted(reviewed.of("unsupported"))),
        ("Notes", list(reviewed.notes)),
        ("Topics and events", list(topics_and_events(connector))),
        ("Start position", list(start_position(connector, args))),
    ):
        _print(title, lines)
    unsupported = [verdict.name for verdict in reviewed.of("unsupported")]
    if args.output:
        if unsupported and not args.skip_unsupported:
            raise ConfigurationError(
                f"no declaration is written: unsupported properties {', '.join(unsupported)}",
                remedy="change them in the file, or pass --skip-unsupported to leave them out",
            )
        write_declaration(Path(args.output), connector, args.connector, unsupported)
    _print("Next steps", list(next_steps(connector, args)))


def formatted(verdicts: list[Any]) -> list[str]:
    """Format verdicts as aligned lines."""
    width = min(max((len(one.name) for one in verdicts), default=0), 44)
    return [f"{one.name:<{width}}  {one.text}" for one in verdicts]


def with_connections(connector: Connector, conn_id: str, kafka: str, registry: str) -> Connector:
    """Return the connector with Airflow connections in place of addresses and logins.

    Args:
        connector: The connector imported from the properties.
        conn_id: Airflow connection of the source; empty for none.
        kafka: Airflow connection of the brokers; empty to publish nothing.
        registry: Airflow connection of the schema registry; empty for none.

    Raises:
        ConfigurationError: A connection conflicts with other options.
    """
    values = connector.to_dict()
    if topics := source_plugin(connector.type).topics(connector):
        source = values["source"]
        if kafka or conn_id:
            source["conn_id"] = kafka or conn_id
        if registry and topics.needs_registry:
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
    """Yield the names of topics and the format of events, and what changes for consumers."""
    plugin = source_plugin(connector.type)
    if topics := plugin.topics(connector):
        yield "the connector keeps running; mirrors are built from its topics"
        yield f"topics: {', '.join(topics.names)}"
        yield topics.events
        yield f"documentation: docs/{plugin.docs_page}.md"
        return
    publish, prefix = connector.publish, connector.topic_prefix
    database, _, table = plugin.table_name.partition(".")
    if publish.topic_naming:
        yield f"topics keep their names, given by {publish.topic_naming}"
    elif publish.topic_pattern:
        yield f"topics keep their names: {publish.topic_pattern}"
    else:
        parts = publish.topic_delimiter.join((prefix, f"<{database}>", f"<{table}>"))
        yield f"topics keep their names: {parts}"
    if publish.transactions:
        yield f"transaction topic: {prefix}{publish.topic_delimiter}{publish.transaction_topic}"
    formats = [
        f"{side}: {name} with schemas" if publish.schemas and name == "json" else f"{side}: {name}"
        for side, name in (("keys", publish.key), ("values", publish.value))
    ]
    yield f"{'; '.join(formats)}; envelope: {publish.envelope}"
    if publish.unwrap.enabled:
        yield "rows without an envelope, as written by ExtractNewDocumentState"
    if publish.transforms:
        yield f"transforms: {', '.join(type(transform).__name__ for transform in publish.transforms)}"
    yield f"tombstones after deletes: {'yes' if connector.tombstones else 'no'}"
    if publish.skipped_operations:
        yield f"skipped operations: {', '.join(publish.skipped_operations)}"
    yield "new: records are sent in transactions; isolation.level=read_committed reads each event once"
    yield f"new: positions topic {prefix}.cdc-positions"
    yield f"further differences: docs/moving-to-{connector.type}.md"


def start_position(connector: Connector, args: Namespace) -> Iterator[str]:
    """Yield where capture starts, according to the offsets stored by Debezium."""
    if topics := source_plugin(connector.type).topics(connector):
        yield f"topics are read from source.start: {topics.start}"
        if args.offsets:
            yield f"{args.offsets} is not used: it is Debezium's position in its database"
        return
    if not args.offsets:
        yield "no offsets given (--offsets): capture starts like a new connector"
        return
    try:
        found = stored(connector, read(args.offsets), args)
    except CdcError as error:
        yield f"unknown: {str(error).removeprefix(f'[CDC-{error.code}] ')}"
        return
    if found.offset is None:
        yield "capture starts like a new connector"
    else:
        text = json.dumps(found.offset, sort_keys=True)
        yield text if len(text) <= _MAX_PRINTED_OFFSET else f"{text[:_MAX_PRINTED_OFFSET]} ..."
    yield from found.remarks
    if connector.snapshot.mode != "never":
        yield (
            "a snapshot fills the mirrors first and emits r events, which consumers already have: "
            "publish.skipped_operations: [r] omits them from topics, snapshot.mode: never from mirrors too"
        )


def stored(connector: Connector, content: bytes, args: Namespace) -> ImportedOffset:
    """Parse stored offsets.

    Raises:
        ConfigurationError: The file has no offset of this connector.
        TransientError: A required server is unavailable.
    """
    from airflow_cdc_provider.migration.offsets.conversion import OffsetFile

    conversion = connect_offsets_of(connector)
    if not conversion.recognizes(content):
        raise ConfigurationError(
            f"{args.offsets} has no offset stored by Debezium", expected="a file that offsets import accepts"
        )
    return conversion.imported(
        OffsetFile(content, allow_invalidation=args.allow_offset_invalidation, host_id=args.host_id)
    )


def write_declaration(path: Path, connector: Connector, imported_from: str, unsupported: list[str]) -> None:
    """Write a declaration to a new file.

    Raises:
        ConfigurationError: The file exists or can't be written.
    """
    import yaml

    from airflow_cdc_provider.connector import load_connector

    head = [f"# Generated from {Path(imported_from).name} by airflow cdc migrate plan."]
    head += [f"# Unsupported and left out: {name}" for name in unsupported]
    head += ["# Add option lake, the location of the mirrors: docs/quickstart.md"]
    text = (
        "\n".join(map(printable, head))
        + "\n"
        + yaml.safe_dump(connector.to_dict(), sort_keys=False, allow_unicode=True)
    )
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written", found=error.strerror or str(error)) from error
    load_connector(path)


def next_steps(connector: Connector, args: Namespace) -> Iterator[str]:
    """Yield the next commands."""
    declaration = args.output or "FILE.yaml"
    topics = source_plugin(connector.type).topics(connector)
    if not args.output:
        yield "write the declaration: the same command with --output FILE.yaml"
    if topics and not connector.source.conn_id:
        yield "set the Airflow connection of the brokers: --kafka-conn-id, option source.conn_id"
    if not topics and not args.conn_id:
        yield "set the Airflow connection of the source: --conn-id, option source.conn_id"
    if not topics and not connector.publish.enabled:
        yield "set the Airflow connection of the brokers: --kafka-conn-id, option publish.kafka.connection"
    yield f"airflow cdc check --connector {declaration}"
    if topics:
        return
    if args.offsets:
        flags = " --allow-offset-invalidation" if args.allow_offset_invalidation else ""
        flags += f" --host-id {args.host_id}" if args.host_id else ""
        yield f"airflow cdc offsets import --connector {declaration} --file {args.offsets}{flags}"
    yield "parallel run, cutover and rollback: docs/moving-from-debezium.md"


def read(path: str) -> bytes:
    """Read a file.

    Raises:
        ConfigurationError: The file can't be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read", found=error.strerror or str(error)) from error


def _print(title: str, lines: list[str]) -> None:
    if lines:
        for line in (title, *(f"  {line}" for line in lines), ""):
            write(line)
