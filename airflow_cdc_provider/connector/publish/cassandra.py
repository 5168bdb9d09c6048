"""Event options of source cassandra. Imports little: read when DAG files are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.options import option, secret_settings


@dataclass(frozen=True)
class CassandraPublishOptions:
    """Event options of source cassandra."""

    operations: Literal["own", "common"] = option(
        "own: i, u, d and r, as Debezium for Cassandra; common: c, u, d and t, as Debezium's other "
        "connectors and its EnvelopeTransformation",
        "own",
    )
    source: Literal["current", "documented"] = option(
        "Source block. current: as in Debezium 3; documented: the nine fields in Debezium's documentation "
        "for Cassandra, with microseconds in ts_ms",
        "current",
    )
    deletions: Literal["columns", "keys"] = option(
        "Place of deletion_ts in delete events of envelope debezium. columns: all columns but keys have a "
        "cell with it, in us, as in Debezium's code; keys: only keys have cells, with it in ms, as in the "
        "documentation of Debezium and DataStax and always in envelope datastax-cells",
        "columns",
    )
    ranges: bool = option(
        "Envelope datastax-cells: write range deletions, as operation t with fields _range_start and "
        "_range_end, which DataStax's documentation doesn't have. false: they have no event, and are counted "
        "as skipped",
        False,
    )
    decimals: Literal["double", "precise", "string"] = option(
        "Representation of decimals in envelope debezium (decimal.handling.mode)", "double"
    )
    varints: Literal["long", "precise", "string"] = option(
        "Representation of varints in envelope debezium (varint.handling.mode)", "long"
    )
    frozen: Literal["structured", "bytes"] = option(
        "Representation of frozen collections and user-defined types in envelope debezium. structured: "
        "arrays, maps and structs, as Debezium's code; bytes: Cassandra's serialized value, as Debezium's "
        "documentation",
        "structured",
    )
    converters: Mapping[str, Mapping[str, Any]] = option(
        "Custom converters of columns in envelope debezium: type (package.module:function), columns (a "
        "regular expression on keyspace.table.column), schema_name, and custom settings",
        {},
        secret=secret_settings,
    )
    before: bool = option(
        "Add before to values of envelope debezium: the row before the change, as far as it is known from "
        "the captured changes or the mirror",
        False,
    )
    order: Literal["log", "write_time"] = option(
        "Order of events (event.order.guarantee.mode). log: node by node, in the order of the commit log; "
        "write_time: by write time, so that events of a partition are ordered across nodes; sorts all events "
        "of a command in memory",
        "log",
    )
    node_header: bool = option(
        "Add the header cdc.node, the host ID of the node that logged the change, to events of changes",
        True,
    )
    reread: bool = option(
        "Envelope datastax: read each changed row at the source once per command, as DataStax's connector "
        "does, at consistency ALL and limited by snapshot.rows_per_second. false: build rows from logged "
        "values",
        False,
    )
    key_in_value: bool = option(
        "Envelope datastax: include key columns in the value; deleted rows are {}. This is DataStax's "
        "JSON-only format",
        False,
    )
