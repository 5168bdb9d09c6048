"""Decodes records of one table to contributions.

* ``c``, ``u`` and ``r``, with or without a row ``before``, put the row ``after``; ``d`` and a tombstone
  delete by the message's key.
* A row with unavailable values (:mod:`.patches`) is a patch. It also contributes itself as the oldest
  version: if nothing else is known of the row, its available columns are.
* Unwrapped rows (ExtractNewRecordState) are put; ``__deleted`` or ``__op: d`` deletes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    DELETE,
    PATCH,
    ROW,
    UPSERT,
    generations,
)
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.formats.arrow_bytes import span_column
from airflow_cdc_provider.formats.json_text import OBJECT, STRING, TRUE
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.debezium.connect_schema import NO_SCHEMA
from airflow_cdc_provider.sources.debezium.json_members import (
    Members,
    ValueSpans,
    members_of,
    read_values,
    spelled,
)
from airflow_cdc_provider.sources.debezium.json_texts import strings
from airflow_cdc_provider.sources.debezium.position import partition_of
from airflow_cdc_provider.sources.debezium.states import write_states

OLDEST: Final = b""
"""A version that every other contribution of a row supersedes."""

_NOTHING: Final = 0
_PUT: Final = 1
_REMOVE: Final = 2
_NO_KEY: Final = 3
_NO_ROW: Final = 4
_NO_ENVELOPE: Final = 5
_BROKEN: Final = 6
_NO_SCHEMA: Final = 7
_CELLS: Final = 8
_OTHER_TOPIC: Final = 9

OTHER_TOPIC: Final = (
    "OTHER-TOPIC: the rows of the table are in another topic, which was captured first, and their order in "
    "several is unknown; exclude this topic, or capture it by a connector with a lake.namespace of its own"
)
_REASONS: Final = {
    _NO_KEY: "NO-KEY: the message has no key that identifies its row; give the table a primary key, "
    "or message.key.columns in Debezium",
    _NO_ROW: "NO-ROW: the event has no row after the change; MongoDB's connector needs a capture.mode with "
    "full documents, or the document was deleted before the lookup: then its delete event follows",
    _NO_ENVELOPE: "NO-ENVELOPE: the value has no op of Debezium's; source.envelope: unwrapped reads rows "
    "without envelopes",
    _BROKEN: "BROKEN: the value is not a JSON object",
    _NO_SCHEMA: "NO-SCHEMA: the schema of the row isn't recorded",
    _CELLS: "CELLS: rows of Cassandra's connector have only the columns that a statement wrote; capture its "
    "commit logs with source cassandra",
    _OTHER_TOPIC: OTHER_TOPIC,
}


@dataclass(frozen=True)
class Form:
    """The format of rows in values.

    Args:
        unwrapped: A value is a row, not an envelope.
        placeholder: The spellings of an unavailable value.
    """

    unwrapped: bool = False
    placeholder: tuple[bytes, ...] = ()


def of_all_origins(fences: Sequence[Fence], origins: Sequence[str]) -> list[Fence]:
    """Add fences for later partitions of a topic: all their messages are newer than the fence.

    Args:
        fences: The fences of a table.
        origins: The partitions of the contributions.
    """
    events = {fence.generation: fence for fence in fences}
    fenced = {(fence.generation, fence.origin) for fence in fences}
    return [
        *fences,
        *(
            replace(fence, origin=origin, position=b"")
            for generation, fence in events.items()
            for origin in origins
            if fence.origin and (generation, origin) not in fenced
        ),
    ]


def decode(
    changes: pa.RecordBatch,
    form: Form,
    schemas: Container[str],
    fences: Sequence[Fence],
    topic: str = "",
) -> Decoded:
    """Decode changes of kind ``change``; records of other kinds are skipped.

    Args:
        changes: Batch of ``CHANGE_SCHEMA``, all of one table.
        form: The format of rows in values.
        schemas: Names of all known schemas.
        fences: The fences of the table.
        topic: The topic of the table; empty for any.
    """
    action, texts = _actions(changes, form, schemas, topic)
    puts = np.flatnonzero(action == _PUT)
    documents = texts.take(pa.array(puts))
    _, found = read_values(documents)
    broken = found.kinds != OBJECT
    action[puts[broken]] = _NO_ROW
    puts = puts[~broken]
    documents = documents.filter(pa.array(~broken))
    partial = _partial(documents, form.placeholder)
    names = changes.column("schema_id").fill_null(NO_SCHEMA)
    states = write_states(names.take(pa.array(puts)), documents)
    removed = np.flatnonzero(action == _REMOVE)
    self_contributing = np.flatnonzero(partial)
    order = np.concatenate([puts, removed, puts[self_contributing]])
    operations = np.concatenate(
        [
            np.where(partial, PATCH, UPSERT),
            np.full(len(removed), DELETE),
            np.full(len(self_contributing), UPSERT),
        ]
    ).astype(np.int8)
    chosen = changes.select(["key", "version", "generation", "origin", "position"]).take(pa.array(order))
    versions = chosen.column("version")
    if len(self_contributing):
        is_lone = pa.array(np.arange(len(order)) >= len(order) - len(self_contributing))
        versions = pc.if_else(is_lone, pa.scalar(OLDEST, pa.binary()), versions)
    contributions = pa.RecordBatch.from_arrays(
        [
            chosen.column("key"),
            pa.repeat(pa.scalar(ROW, pa.int8()), len(order)),
            pa.repeat(pa.scalar(b"", pa.binary()), len(order)),
            pa.nulls(len(order), pa.binary()),
            generations(chosen, of_all_origins(fences, pc.unique(chosen.column("origin")).to_pylist())),
            versions,
            pa.array(operations),
            pa.concat_arrays(
                [states, pa.nulls(len(removed), pa.binary()), states.take(pa.array(self_contributing))]
            ),
        ],
        schema=CONTRIBUTION_SCHEMA,
    )
    undecodable = np.flatnonzero(action >= _NO_KEY).tolist()
    return Decoded(
        contributions,
        tuple(undecodable),
        tuple(_REASONS[int(action[row])] for row in undecodable),
        order.tolist(),
    )


def _actions(
    changes: pa.RecordBatch, form: Form, schemas: Container[str], topic: str
) -> tuple[Ints, pa.Array]:
    """Return what becomes of each change, and the texts of their rows."""
    payload = changes.column("payload")
    selected = pc.equal(changes.column("kind"), CHANGE).fill_null(False).to_numpy(zero_copy_only=False)
    tombstone = payload.is_null().to_numpy(zero_copy_only=False)
    data, values = read_values(payload)
    members = members_of(data, values)
    action, after = _unwrapped(members, values) if form.unwrapped else _enveloped(members)
    action[values.kinds != OBJECT] = _BROKEN
    action[tombstone] = _REMOVE
    texts = _texts(data, after)
    action[(action == _PUT) & texts.is_null().to_numpy(zero_copy_only=False)] = _NO_ROW
    names = changes.column("schema_id").fill_null(NO_SCHEMA)
    action[(action == _PUT) & ~_known(names, schemas)] = _NO_SCHEMA
    no_key = changes.column("key").is_null().to_numpy(zero_copy_only=False)
    action[no_key & np.isin(action, (_PUT, _REMOVE))] = _NO_KEY
    if topic:
        action[_of_other_topics(changes.column("origin"), topic)] = _OTHER_TOPIC
    action[~selected] = _NOTHING
    return action, texts


def operations_of(members: Members) -> Bytes:
    """Return the letter of each envelope's ``op``, 0 for none."""
    (op,) = members.find("op")
    letter = (op.kinds == STRING) & (op.ends - op.starts == 3)
    if not letter.any():
        return np.zeros(len(op.kinds), np.uint8)
    return np.where(letter, members.data[np.where(letter, op.starts + 1, 0)], 0).astype(np.uint8)


def _enveloped(members: Members) -> tuple[Ints, ValueSpans]:
    letters = operations_of(members)
    (after,) = members.find("after")
    action = np.full(members.count, _NO_ENVELOPE, np.int64)
    action[np.isin(letters, np.frombuffer(b"cur", np.uint8))] = _PUT
    action[letters == ord("d")] = _REMOVE
    action[letters == ord("i")] = _CELLS
    return action, after


def _unwrapped(members: Members, values: ValueSpans) -> tuple[Ints, ValueSpans]:
    deleted, op = members.find("__deleted", "__op")
    is_deleted = (deleted.kinds == TRUE) | spelled(members.data, deleted, [b'"true"'])
    is_deleted |= spelled(members.data, op, [b'"d"'])
    return np.where(is_deleted, _REMOVE, _PUT), values


def _texts(data: Bytes, rows: ValueSpans) -> pa.Array:
    """Return rows as JSON; MongoDB's connector writes it as text."""
    objects = rows.only(OBJECT)
    found = span_column(pa.binary(), data, objects.starts, objects.ends)
    if (rows.kinds == STRING).any():
        found = pc.coalesce(found, strings(data, rows).cast(pa.binary()))
    return found


def _known(names: pa.Array, schemas: Container[str]) -> Flags:
    distinct = pc.dictionary_encode(names)
    known = np.array(
        [name == NO_SCHEMA or name in schemas for name in distinct.dictionary.to_pylist()], np.bool_
    )
    if not len(known):
        return np.zeros(len(names), np.bool_)
    found: Flags = known[distinct.indices.to_numpy(zero_copy_only=False)]
    return found


def _of_other_topics(origins: pa.Array, topic: str) -> Flags:
    distinct = pc.dictionary_encode(origins)
    others = np.array([partition_of(one)[0] != topic for one in distinct.dictionary.to_pylist()], np.bool_)
    found: Flags = others[distinct.indices.to_numpy(zero_copy_only=False)]
    return found


def _partial(documents: pa.Array, placeholder: tuple[bytes, ...]) -> Flags:
    """Return which rows have unavailable values."""
    found = np.zeros(len(documents), np.bool_)
    if not placeholder:
        return found
    any_of_them = "|".join(re.escape(spelling.decode()) for spelling in placeholder)
    maybe = pc.match_substring_regex(documents, any_of_them)
    some = np.flatnonzero(maybe.to_numpy(zero_copy_only=False))
    if len(some):
        data, values = read_values(documents.take(pa.array(some)))
        members = members_of(data, values)
        found[some[members.owners[spelled(data, members.values, placeholder)]]] = True
    return found
