"""MongoDB's BSON: change events, documents, updates, and the texts that are written of them.

The first byte of an input chooses a part, the second the options, the rest is its own:

=========== ===========================================================================
`built`     choices: change events with members of any type, damaged in a few places
`raw`       documents; the length of the last one is set right
=========== ===========================================================================
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final

import bson
import numpy as np
import pyarrow as pa
from bson import json_util
from bson.errors import InvalidBSON

from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA, PATCH
from airflow_cdc_provider.changes.record import CHANGE, QUARANTINE
from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.formats.extended_json import DOCUMENT, KEY, LINES, UPDATED, write_values
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import scan
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.events.decode import JSON_FORMS, EventForm, decode_stream
from airflow_cdc_provider.sources.mongodb.options import MongodbInference, MongodbOptions
from airflow_cdc_provider.sources.mongodb.records import snapshot_records
from airflow_cdc_provider.sources.mongodb.signal_documents import parse_signals
from tests.unit.sources.mongodb.documents import READ
from tests.unit.sources.mongodb.recorded_changes import recorded, records
from tools.fuzz.choices import Choices

_SIZES: Final = {0x01: 8, 0x07: 12, 0x08: 1, 0x09: 8, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16}
_NAMED: Final = (0x02, 0x0D, 0x0E)
_KINDS: Final = (*_SIZES, *_NAMED, 0x03, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0C, 0x0F, 0x7F, 0xFF)
_MEMBERS: Final = (
    b"_id",
    b"operationType",
    b"clusterTime",
    b"wallTime",
    b"ns",
    b"documentKey",
    b"fullDocument",
    b"fullDocumentBeforeChange",
    b"updateDescription",
    b"to",
    b"lsid",
    b"txnNumber",
    b"splitEvent",
)
_NAMES: Final = (*_MEMBERS, b"a", b"a.b", b"x", b"0", b"1", b"$ref", b"$id", b"db", b"coll", b"_data", b"")
_UPDATES: Final = (b"updatedFields", b"removedFields", b"truncatedArrays", b"disambiguatedPaths")
_OPERATIONS: Final = ("insert", "update", "replace", "delete", "drop", "rename", "invalidate", "create")
_COLUMNS: Final = ("int", "bigint", "double", "float", "decimal(9,2)", "boolean", "string", "date", "binary")


def run(data: bytes) -> None:
    """Read, decode, project and write events.

    Raises:
        AssertionError: A promise is broken, or any other error.
    """
    if len(data) < 2:
        return
    choices = Choices(data[2:])
    if data[0] % 2:
        events = [choices.damaged(_event(choices)) for _ in range(1 + data[1] % 3)]
    else:
        raw = choices.rest()
        events = [struct.pack("<i", len(raw) + 4) + raw]
    if data[1] & 0x80:
        _write(b"".join(events), (KEY, DOCUMENT, UPDATED, LINES)[data[1] & 3])
    else:
        _read(events, _codecs()[data[1] & 3], list(JSON_FORMS)[data[1] >> 2 & 3])


def _read(events: list[bytes], codec: MongodbCodec, form_name: str) -> None:
    """Capture and merge events, and build events of them."""
    parse_signals(events)
    view = as_bytes(b"".join(events))
    spans = split_documents(view)
    scan(view, spans, 0, -1)
    found = records(*events, selects=bool)
    kinds = found.column("kind").to_pylist()
    assert set(kinds) <= {CHANGE, QUARANTINE, "drop", "signal", "schema"}
    assert len(spans.starts) <= len(kinds) + len(events), "an event is lost"
    decoded = codec.decode(found, ())
    assert len(decoded.reasons) == len(decoded.undecodable)
    contributions = decoded.contributions
    contributions.validate(full=True)
    counts = codec.tally(contributions)
    learned = codec.learn(pa.Table.from_batches([counts]))
    is_patch = np.array(contributions.column("op").to_pylist()) == PATCH
    states = contributions.column("state").drop_null()
    for one in contributions.filter(pa.array(~is_patch)).column("state").drop_null().to_pylist():
        bson.decode(one, READ)
    patches = contributions.filter(pa.array(is_patch)).column("state")
    codec.patch(states, patches, np.linspace(0, len(patches), len(states) + 1).astype(np.int64))
    _project(learned, states)
    payloads = found.filter(pa.compute.equal(found["kind"], CHANGE)).column("payload")
    for full_document in ("lookup", "none"):
        form = EventForm(form_name, document_key=True, tokens=True, raw=True)
        built = decode_stream(payloads, full_document=full_document, pre_images=True, form=form)
        built.events.validate(full=True)


def _project(codec: Any, states: pa.Array) -> None:
    columns = {field.name: pa.nulls(len(states), field.type) for field in LIVE_ROW_SCHEMA}
    columns["state"] = states
    live = pa.RecordBatch.from_arrays(list(columns.values()), schema=LIVE_ROW_SCHEMA)
    projected = codec.project(live)
    projected.validate(full=True)
    assert projected.num_rows == len(states)
    assert projected.nbytes <= 200 * (states.nbytes + 1000), "much comes out of little"
    list(codec.to_json(live))


def _write(data: bytes, profile: int) -> None:
    """Write documents as text; compare with PyMongo's."""
    view = as_bytes(data)
    spans = split_documents(view)
    kinds = np.full(len(spans.starts), 3)
    texts = write_values(view, kinds, spans.starts, spans.ends, profile)
    texts.column.validate(full=True)
    found = snapshot_records(view, spans, table="s.c", time=1, number=0, first_row=0, captured_us=1)
    found.validate(full=True)
    (codec, *_) = _codecs()
    states = codec.decode(found, ()).contributions.column("state").drop_null()
    _project(codec, states)
    for document, text in zip(states.to_pylist(), _texts(states), strict=True):
        with suppress(InvalidBSON, RecursionError, ValueError):
            known = bson.decode(document, _EXACT)
            # Of members with the same name, and of types without a class, Python's objects lose something.
            if b"$" not in document and bson.encode(known) == document:
                expected = json_util.dumps(known, json_options=json_util.CANONICAL_JSON_OPTIONS)
                assert text == expected, f"{text} is not {expected}"


_EXACT: Final = bson.CodecOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS)


def _texts(states: pa.Array) -> list[str]:
    columns = {field.name: pa.nulls(len(states), field.type) for field in LIVE_ROW_SCHEMA}
    columns["state"] = states
    live = pa.RecordBatch.from_arrays(list(columns.values()), schema=LIVE_ROW_SCHEMA)
    return list(_codecs()[0].to_json(live))


@cache
def _codecs() -> tuple[MongodbCodec, ...]:
    columns = {kind.partition("(")[0]: f"a {kind}" for kind in _COLUMNS}
    infer = MongodbInference((".*",))
    return (
        MongodbCodec.of("s.c", MongodbOptions(columns={"s.c": columns})),
        MongodbCodec.of("s.c", MongodbOptions(infer=infer)),
        MongodbCodec.of("s.c", MongodbOptions(full_document="none", infer=infer)),
        MongodbCodec.of("s.c", MongodbOptions(full_document="post_image")),
    )


def _event(choices: Choices) -> bytes:
    """Build a change event: its usual members, then others."""
    namespace = _document(_element(2, b"db", _string(b"s")), _element(2, b"coll", _string(b"c")))
    operation = choices.one_of(_OPERATIONS).encode()
    usual = [
        _element(3, b"_id", _document(_element(2, b"_data", _string(b"8265")))),
        _element(2, b"operationType", _string(operation)),
        _element(0x11, b"clusterTime", struct.pack("<II", choices.byte(), 10)),
        _element(3, b"ns", namespace),
        _element(3, b"documentKey", _members(choices, 2, (b"_id", b"k"))),
        _element(3, b"fullDocument", _members(choices, 4, _NAMES)),
        _element(3, b"updateDescription", _members(choices, 4, _UPDATES)),
        _element(3, b"fullDocumentBeforeChange", _members(choices, 3, _NAMES)),
    ]
    kept = choices.byte()
    members = [one for number, one in enumerate(usual) if not kept >> number & 1]
    return _document(*members, *choices.some(3, lambda: _any(choices, 3, _NAMES)))


def _members(choices: Choices, depth: int, names: tuple[bytes, ...]) -> bytes:
    return _document(*choices.some(5, lambda: _any(choices, depth, names)))


def _any(choices: Choices, depth: int, names: tuple[bytes, ...]) -> bytes:
    name = choices.one_of(names) if choices.byte() % 4 else choices.chunk().replace(b"\0", b"")
    kind = choices.one_of(_KINDS)
    return _element(kind, name, _value(choices, kind, depth))


def _value(choices: Choices, kind: int, depth: int) -> bytes:
    if kind in _SIZES:
        return choices.take(_SIZES[kind]).ljust(_SIZES[kind], b"\0")
    if kind in _NAMED:
        return _string(choices.chunk())
    if kind in (0x03, 0x04):
        names = _NAMES if kind == 0x03 else (b"0", b"1", b"2")
        return _members(choices, depth - 1, names) if depth else _document()
    if kind == 0x05:
        raw = choices.chunk()
        return struct.pack("<iB", len(raw), choices.byte()) + raw
    if kind == 0x0B:
        return b"".join(choices.chunk().replace(b"\0", b"") + b"\0" for _ in range(2))
    if kind == 0x0C:
        return _string(choices.chunk()) + choices.take(12).ljust(12, b"\0")
    if kind == 0x0F:
        inside = _string(choices.chunk()) + (_members(choices, depth - 1, _NAMES) if depth else _document())
        return struct.pack("<i", len(inside) + 4) + inside
    return b""


def _element(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text) + 1) + text + b"\0"


def _document(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def seeds() -> Iterator[bytes]:
    """Yield recorded events, and random choices."""
    for name in ("default", "lookup_pre", "expanded", "signals"):
        raw = recorded(name)
        spans = split_documents(as_bytes(raw))
        for start, end in list(zip(spans.starts, spans.ends, strict=True))[::7]:
            yield bytes([0, start % 256]) + raw[start + 4 : end]
    rng = random.Random(1)
    for _ in range(200):
        yield b"\1" + rng.randbytes(rng.randrange(20, 400))
