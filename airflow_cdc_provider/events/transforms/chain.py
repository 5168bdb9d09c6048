"""Chain of transforms in declaration order, between envelopes and the encoder.

A record of Kafka Connect is a row of a piece's columns; transforms take and return pieces, without Python
objects per row. Before the first transform, tombstones become separate records, as in Connect, so that
predicates can select them. If a predicate selects some rows of a piece, the piece is split; the encoder
restores the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.transforms import field_steps, record_steps
from airflow_cdc_provider.events.transforms import options as given
from airflow_cdc_provider.events.transforms.columns import Column, Side, at_path, reshaped
from airflow_cdc_provider.events.transforms.evaluate import Scope, condition, text
from airflow_cdc_provider.events.transforms.expression import parse_expression
from airflow_cdc_provider.events.transforms.java_patterns import java_pattern, replaced
from airflow_cdc_provider.events.transforms.pieces import AFTER, Piece, Rows
from airflow_cdc_provider.events.transforms.row_options import UnwrapOptions
from airflow_cdc_provider.events.transforms.unwrap import unwrap
from airflow_cdc_provider.exceptions import ConfigurationError, reworded
from airflow_cdc_provider.secrets import resolve_secret

_MAX_NAMED_TOPICS: Final = 3
_DELETED: Final = "__deleted"
_TIMESTAMP: Final = ConnectSchema("int64", name="org.apache.kafka.connect.data.Timestamp", version=1)


@dataclass(frozen=True)
class Chain:
    """Transforms that are applied in order.

    Args:
        transforms: Options of the transforms.
        lenient: Whether missing fields are null in expressions, because documents have no fixed fields.
    """

    transforms: Sequence[given.Transform]
    lenient: bool = False

    def apply(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Transform records.

        Args:
        pieces: The records; rows with tombstones are in one piece only.

        Returns:
            The transformed records.

        Raises:
            ConfigurationError: A transform fails for the records; the message names it.
        """
        if not self.transforms:
            return list(pieces)
        found = [part for piece in pieces for part in _tombstones_as_records(piece)]
        for number, transform in enumerate(self.transforms):
            place = f"publish.transforms[{number}], type {transform.type}"
            found = [new for piece in found for new in self._apply(place, transform, piece) if len(new.rows)]
        return found

    def _apply(self, place: str, transform: given.Transform, piece: Piece) -> list[Piece]:
        """Apply a transform; errors name the transform and the topics."""
        try:
            return self._applied(transform, piece)
        except ConfigurationError as error:
            named = [one.topic for one in piece.envelope.destinations]
            topics = ", ".join(named[:_MAX_NAMED_TOPICS]) + (" ..." if named[_MAX_NAMED_TOPICS:] else "")
            raise reworded(error, f"{error.message} ({place}, topic {topics})") from error

    def _applied(self, transform: given.Transform, piece: Piece) -> list[Piece]:
        chosen = self._chosen(transform.when, piece.envelope)
        if not chosen.any():
            return [piece]
        if chosen.all():
            return _STEPS[transform.type](self, transform, piece)
        rest = some_rows(piece, np.flatnonzero(~chosen))
        return [rest, *_STEPS[transform.type](self, transform, some_rows(piece, np.flatnonzero(chosen)))]

    def _chosen(self, when: given.When, envelope: Envelope) -> np.ndarray:
        """Return which records a predicate selects."""
        chosen = np.ones(len(envelope.key), np.bool_)
        if when == given.When():
            return chosen
        if when.topic:
            pattern = java_pattern(when.topic)
            matches = np.array(
                [pattern.fullmatch(d.topic) is not None for d in envelope.destinations], np.bool_
            )
            chosen &= matches[envelope.destination]
        if when.tombstone is not None:
            chosen &= _without_value(envelope) == when.tombstone
        if when.header:
            texts = envelope.headers.get(when.header)
            there = texts.is_valid().to_numpy(zero_copy_only=False) if texts is not None else False
            chosen &= there
        if when.condition and chosen.any():
            chosen &= self._holds(when.condition, envelope)
        return ~chosen if when.negate else chosen

    def _holds(self, expression: str, envelope: Envelope) -> np.ndarray:
        found = condition(parse_expression(expression, "boolean"), Scope(envelope, self.lenient))
        return found.fill_null(False).to_numpy(zero_copy_only=False)

    def _filter(self, options: given.FilterOptions, piece: Piece) -> list[Piece]:
        evaluated, kept = _to_evaluate(options.tombstones, piece.envelope)
        if evaluated.all():
            return [some_rows(piece, np.flatnonzero(self._holds(options.condition, piece.envelope)))]
        part = some_rows(piece, np.flatnonzero(evaluated))
        kept[evaluated] = self._holds(options.condition, part.envelope) if len(part.rows) else False
        return [some_rows(piece, np.flatnonzero(kept))]

    def _route(self, options: given.RouteOptions, piece: Piece) -> list[Piece]:
        evaluated, kept = _to_evaluate(options.tombstones, piece.envelope)
        rest = some_rows(piece, np.flatnonzero(~evaluated & kept))
        part = some_rows(piece, np.flatnonzero(evaluated))
        if not len(part.rows):
            return [rest]
        topics = text(parse_expression(options.topic, "text"), Scope(part.envelope, self.lenient))
        return [rest, replace(part, envelope=record_steps.routed(part.envelope, topics))]

    def _logical_table(self, options: given.LogicalTableOptions, piece: Piece) -> list[Piece]:
        found = []
        for number, destination in enumerate(piece.envelope.destinations):
            rows = np.flatnonzero(piece.envelope.destination == number)
            if not len(rows):
                continue
            part = _only_destination(some_rows(piece, rows), number)
            topic = replaced(options.topic_regex, options.topic_replacement, destination.topic)
            if topic:
                physical = destination.topic
                if options.key_field_regex:
                    identifier = replaced(options.key_field_regex, options.key_field_replacement, physical)
                    physical = physical if identifier is None else identifier
                part = replace(
                    part,
                    envelope=record_steps.logical_table(
                        part.envelope,
                        topic,
                        physical,
                        key_field=options.key_field_name if options.unique_keys else "",
                        adjustment=options.schema_names,
                    ),
                )
            found.append(part)
        return found

    def _unwrap(self, options: given.UnwrapStepOptions, piece: Piece) -> list[Piece]:
        """Unwrap envelopes; other records are kept, tombstones are handled by ``deletes``."""
        if not record_steps.is_envelope(piece.envelope):
            return [piece]
        there = np.flatnonzero(~_without_value(piece.envelope))
        part = some_rows(piece, there)
        if not len(there):
            return []
        choices = UnwrapOptions(
            deletes=options.deletes,
            add_fields=options.add_fields,
            add_fields_prefix=options.add_fields_prefix,
            add_headers=options.add_headers,
            add_headers_prefix=options.add_headers_prefix,
        )
        value = Column.of(part.envelope, "value")
        deleted = (
            pc.equal(part.envelope.value.field("op"), "d").fill_null(False).to_numpy(zero_copy_only=False)
        )
        documents = []
        for name, selected in (("after", ~deleted), ("before", deleted)):
            side = value.member(name)
            if side is None or side.schema.type != "struct" or pa.types.is_null(side.values.type):
                continue
            rows = np.flatnonzero(selected & side.values.is_valid().to_numpy(zero_copy_only=False))
            if len(rows):
                documents.append((side.schema, Rows(rows, side.values.take(pa.array(rows)))))
        unwrapped = unwrap(
            part.envelope,
            [Rows(np.arange(len(there)), part.envelope.key)],
            [rows for _, rows in documents],
            choices,
        )
        return [
            replace(new, rows=part.rows[new.rows], turn=max(new.turn, part.turn), field_names="")
            for new in (self._with_schemas(one, part.envelope, documents) for one in unwrapped)
        ]

    def _with_schemas(
        self, new: Piece, old: Envelope, documents: Sequence[tuple[ConnectSchema, Rows]]
    ) -> Piece:
        """Restore the schemas that rows have in their envelope."""
        (destination,) = new.envelope.destinations
        values = new.envelope.value
        origin = old.destinations[int(old.destination[new.rows[0]])]
        known = {name: schema for schema, _ in documents for name, schema in schema.fields}
        value = destination.value
        if value is not origin.value:
            fields = tuple((name, known.get(name, schema)) for name, schema in value.fields)
            if _DELETED in dict(fields):  # text in unwrapped rows
                marked = at_path(Column(replace(value, fields=fields), values), _DELETED, _as_text)
                fields, values = marked.schema.fields, marked.values
            inner = dict(origin.value.fields).get("after", value)
            value = replace(value, name=inner.name, version=inner.version, fields=fields)
        destinations = [replace(destination, key=origin.key, value=value)]
        envelope = replace(new.envelope, destinations=destinations, value=values)
        return replace(new, envelope=envelope)


def _as_text(column: Column) -> Column:
    return field_steps.cast_fields(column, {}, "string")


def _only_destination(piece: Piece, number: int) -> Piece:
    envelope = replace(
        piece.envelope,
        destinations=[piece.envelope.destinations[number]],
        destination=np.zeros(len(piece.rows), np.int64),
    )
    return replace(piece, envelope=envelope)


def some_rows(piece: Piece, rows: np.ndarray) -> Piece:
    """Select records of a piece by index."""
    if len(rows) == len(piece.rows):
        return piece
    index, envelope = pa.array(rows), piece.envelope
    return replace(
        piece,
        rows=piece.rows[rows],
        envelope=replace(
            envelope,
            destination=envelope.destination[rows],
            key=envelope.key.take(index),
            value=envelope.value.take(index),
            tombstone=envelope.tombstone[rows],
            headers={name: texts.take(index) for name, texts in envelope.headers.items()},
            partition=None if envelope.partition is None else envelope.partition.take(index),
            timestamp=None if envelope.timestamp is None else envelope.timestamp.take(index),
        ),
    )


def _tombstones_as_records(piece: Piece) -> list[Piece]:
    """Convert tombstones that follow events to records."""
    envelope = piece.envelope
    followed = np.flatnonzero(envelope.tombstone)
    if not len(followed):
        return [piece]
    own = replace(envelope, tombstone=np.zeros(len(piece.rows), np.bool_))
    after = some_rows(replace(piece, envelope=own, turn=AFTER), followed)
    nothing = pa.nulls(len(followed), envelope.value.type)
    return [
        replace(piece, envelope=own),
        replace(after, envelope=replace(after.envelope, value=nothing, absent="", nulls=False)),
    ]


def _without_value(envelope: Envelope) -> np.ndarray:
    if envelope.absent:
        return np.zeros(len(envelope.key), np.bool_)
    return envelope.value.is_null().to_numpy(zero_copy_only=False)


def _to_evaluate(tombstones: str, envelope: Envelope) -> tuple[np.ndarray, np.ndarray]:
    """Return the records to evaluate an expression for, and the records kept without evaluation."""
    if tombstones == "evaluate":
        everything = np.ones(len(envelope.key), np.bool_)
        return everything, everything.copy()
    missing = _without_value(envelope)
    return ~missing, missing & (tombstones == "keep")


Step = Callable[[Chain, Any, Piece], list[Piece]]


def _of_fields(change: Callable[[Any, Column], Column]) -> Step:
    """Create a step from a function on key or value columns."""

    def step(chain: Chain, options: Any, piece: Piece) -> list[Piece]:
        side: Side = options.target
        column = piece.envelope.key if side == "key" else piece.envelope.value
        if column.null_count == len(column):  # null values have no fields
            return [piece]
        envelope = reshaped(piece.envelope, side, lambda one: change(options, one))
        return [replace(piece, envelope=envelope)]

    return step


def _of_records(change: Callable[[Any, Envelope], Envelope]) -> Step:
    """Create a step from a function on envelopes."""

    def step(chain: Chain, options: Any, piece: Piece) -> list[Piece]:
        return [replace(piece, envelope=change(options, piece.envelope))]

    return step


def _of_values(change: Callable[[Any, Envelope], Envelope]) -> Step:
    """Create a step from a function that reads values; tombstones pass unchanged."""

    def step(chain: Chain, options: Any, piece: Piece) -> list[Piece]:
        missing = _without_value(piece.envelope)
        rest = some_rows(piece, np.flatnonzero(missing))
        part = some_rows(piece, np.flatnonzero(~missing))
        if not len(part.rows):
            return [rest]
        return [rest, replace(part, envelope=change(options, part.envelope))]

    return step


def _hash(chain: Chain, options: given.HashOptions, piece: Piece) -> list[Piece]:
    salt = resolve_secret(options.salt, "publish.transforms salt").encode()
    algorithm = options.algorithm.replace("-", "").lower()

    def hide(_: given.HashOptions, column: Column) -> Column:
        as_java, length = options.version == "v1", options.length
        return field_steps.hashed(column, options.fields, algorithm, salt, as_java=as_java, length=length)

    return _of_fields(hide)(chain, options, piece)


def _insert_field(chain: Chain, options: given.InsertFieldOptions, piece: Piece) -> list[Piece]:
    envelope = piece.envelope
    side = envelope.key if options.target == "key" else envelope.value
    if side.null_count == len(side):
        return [piece]
    count = len(side)
    topics = pa.array([d.topic for d in envelope.destinations], pa.utf8()).take(
        pa.array(envelope.destination)
    )
    partition = pa.nulls(count, pa.int32()) if envelope.partition is None else envelope.partition
    timestamp = pa.nulls(count, pa.int64()) if envelope.timestamp is None else envelope.timestamp
    static = pa.repeat(pa.scalar(options.static_value, pa.utf8()), count)
    candidates = (
        (options.topic_field, ConnectSchema("string"), topics),
        (options.partition_field, ConnectSchema("int32"), partition),
        (options.timestamp_field, _TIMESTAMP, timestamp),
        (options.static_field, ConnectSchema("string"), static),
    )

    def make(schema: ConnectSchema, values: pa.Array) -> Callable[[int], Column]:
        return lambda rows: Column(schema, values if rows == count else values.slice(0, 0))

    added = [
        (name.rstrip("!?"), make(replace(schema, optional=not name.endswith("!")), values))
        for name, schema, values in candidates
        if name
    ]
    changed = reshaped(envelope, options.target, lambda column: field_steps.with_fields(column, added))
    return [replace(piece, envelope=changed)]


_STEPS: Final[Mapping[str, Step]] = {
    "filter": Chain._filter,
    "drop": lambda chain, options, piece: [],
    "route": Chain._route,
    "rename_topic": _of_records(lambda o, e: record_steps.renamed_topics(e, o.regex, o.replacement)),
    "logical_table": Chain._logical_table,
    "unwrap": Chain._unwrap,
    "fields": _of_fields(lambda o, c: field_steps.chosen_fields(c, o.include, o.exclude, o.renames)),
    "mask": _of_fields(lambda o, c: field_steps.masked(c, o.fields, o.replacement)),
    "truncate": _of_fields(lambda o, c: field_steps.truncated(c, o.fields, o.length)),
    "hash": _hash,
    "cast": _of_fields(lambda o, c: field_steps.cast_fields(c, o.fields, o.to)),
    "timestamp": _of_fields(lambda o, c: field_steps.converted_time(c, o.field, o.to, o.format, o.precision)),
    "insert_field": _insert_field,
    "insert_header": _of_records(lambda o, e: record_steps.with_header(e, o.header, o.value)),
    "drop_headers": _of_records(lambda o, e: record_steps.without_headers(e, o.headers)),
    "header_to_value": _of_values(
        lambda o, e: record_steps.header_to_value(e, o.headers, o.fields, move=o.operation == "move")
    ),
    "value_to_header": _of_values(
        lambda o, e: record_steps.value_to_header(
            e, o.target, o.fields, o.headers, move=o.operation == "move"
        )
    ),
    "hoist": _of_fields(lambda o, c: field_steps.hoisted(c, o.field)),
    "extract": _of_fields(lambda o, c: field_steps.extracted(c, o.field)),
    "value_to_key": _of_records(lambda o, e: record_steps.value_to_key(e, o.fields)),
    "flatten": _of_fields(lambda o, c: field_steps.flattened(c, o.delimiter)),
    "schema": _of_fields(lambda o, c: field_steps.named_schema(c, o.name, o.version)),
    "partition": _of_values(lambda o, e: record_steps.partitioned(e, o.fields, o.partitions)),
}
