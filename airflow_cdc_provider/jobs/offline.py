"""Work on recordings, without a server: what ``airflow cdc events`` and ``airflow cdc rows`` print.

Reads recorded native bytes, decodes them by the source's own kernels and hands on lines of JSON, a chunk of
rows at a time. Broken places are located, counted and stepped over; with the source's option ``strict`` the
first one ends it.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_kernels import binary_slices
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import encode, to_lines
from airflow_cdc_provider.events.envelopes import mongodb as mongodb_envelope
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.mongodb import events as mongodb_events
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions

_CHUNK_BYTES: Final = 16 * 1024 * 1024


@dataclass
class Damage:
    """What was broken in the input.

    Args:
        strict: Raise at the first broken place.
        places: Where and what, one text each.
    """

    strict: bool
    places: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Note a broken place.

        Raises:
            CorruptInput: The source is strict.
        """
        if self.strict:
            raise CorruptInput(
                f"{place}: {reason}", remedy="set source.advanced.strict: false to step over broken places"
            )
        self.places.append(f"{place}: {reason}")


@dataclass(frozen=True)
class Recording:
    """A recording and how to look at it.

    Args:
        path: File or folder, as the source expects it.
        schema: CQL file with the schema; empty for none.
        now_ns: The moment at which events are built and TTLs are judged, ns since 1970.
        table: Rows of this table only; empty for all.
    """

    path: Path
    schema: str
    now_ns: int
    table: str = ""


def row_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Placeholder."""
    raise ConfigurationError("rows are not read from this source")


def event_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events as lines of JSON, in publishing order.

    Args:
        connector: The declaration.
        recording: The input.
        damage: Collects what is broken.

    Raises:
        ConfigurationError: The input isn't there or not of this source.
        CorruptInput: It is broken and the source is strict.
    """
    return _EVENTS[connector.type](connector, recording, damage)


def text_of(lines: pa.LargeStringArray) -> memoryview:
    """Return the bytes of an array of texts, one after the other, without copying them."""
    data, starts, ends, _ = binary_slices(lines)
    return memoryview(data[starts[0] : ends[-1]] if len(starts) else data)


def _mongodb_events(
    connector: Connector, recording: Recording, damage: Damage
) -> Iterator[pa.LargeStringArray]:
    options = connector.source
    assert isinstance(options, MongodbOptions)
    headers = context_headers(connector.topic_prefix, connector.publish.task_id, "mongodb", str(uuid.uuid4()))
    snapshots, streams = mongodb_files(recording.path)

    def decoded_snapshots() -> Iterator[pa.RecordBatch]:
        for (database, collection), file in snapshots:
            if not _captured(connector, options, database, collection):
                continue
            if f"{database}.{collection}" in connector.snapshot.filters:
                raise ConfigurationError(
                    f"the filter of {database}.{collection} can't be judged without a server",
                    remedy="take it out of snapshot.filters, or record only the documents that it selects",
                )
            for chunk in _bson_chunks(file, damage, change_events=False):
                yield _sound(
                    chunk, mongodb_events.decode_snapshot(chunk.documents, database, collection), damage
                )

    def decoded_streams() -> Iterator[pa.RecordBatch]:
        for file in streams:
            for chunk in _bson_chunks(file, damage, change_events=True):
                events = _sound(
                    chunk,
                    mongodb_events.decode_stream(
                        chunk.documents, full_document=options.full_document, pre_images=options.pre_images
                    ),
                    damage,
                )
                yield _of_captured_tables(connector, options, events)

    def lines(events: pa.RecordBatch, *, last_of_snapshot: bool = False) -> pa.LargeStringArray:
        envelope = mongodb_envelope.build(
            events,
            mongodb_envelope.EnvelopeOptions(
                connector.topic_prefix,
                connector.publish.version,
                connector.publish.tombstones,
                recording.now_ns,
                last_of_snapshot,
            ),
        )
        records = encode(envelope, schemas=connector.publish.schemas)
        return to_lines(records, headers if connector.publish.headers else ())

    if connector.snapshot.mode != "never":
        waiting: pa.RecordBatch | None = None
        for events in decoded_snapshots():
            if events.num_rows:
                if waiting is not None:
                    yield lines(waiting)
                waiting = events
        if waiting is not None:
            yield lines(waiting, last_of_snapshot=True)
    for events in decoded_streams():
        if events.num_rows:
            yield lines(events)


def mongodb_files(path: Path) -> tuple[list[tuple[tuple[str, str], Path]], list[Path]]:
    """Find a MongoDB recording's files.

    Args:
        path: A file of change events, or a folder; ``snapshot.DB.COLL.bson`` in it holds snapshot documents.

    Returns:
        Snapshot files with database and collection, in the order of collection names as Debezium reads them;
        files of change events by name.

    Raises:
        ConfigurationError: There are none.
    """
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = sorted(file for file in path.iterdir() if _bson_name(file).endswith(".bson"))
    else:
        found = []
    if not found:
        raise ConfigurationError(
            f"there is no recording at {path}",
            expected="a file of concatenated BSON documents, or a folder with *.bson (or *.bson.gz) files",
        )
    snapshots, streams = [], []
    for file in found:
        parts = _bson_name(file).removesuffix(".bson").split(".", 2)
        if parts[0] == "snapshot" and len(parts) == 3:
            snapshots.append(((parts[1], parts[2]), file))
        else:
            streams.append(file)
    snapshots.sort(key=lambda item: (item[0][1].encode("utf-16-be"), item[0][0]))
    return snapshots, streams


def _bson_name(file: Path) -> str:
    return file.name.removesuffix(".gz")


@dataclass(frozen=True)
class _Chunk:
    """Some documents of a file, and where each begins in it."""

    file: Path
    documents: pa.LargeBinaryArray
    starts: np.ndarray

    def place(self, row: int) -> str:
        return f"{self.file} at byte {self.starts[row]}"


def _bson_chunks(file: Path, damage: Damage, *, change_events: bool) -> Iterator[_Chunk]:
    """Cut a file into documents, chunk by chunk, without copying them."""
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rb") as stream:
            raw = stream.read()
    except (OSError, EOFError) as error:
        raise CorruptInput(f"{file} can't be read", found=str(error)) from error
    data = np.frombuffer(raw, np.uint8)
    starts, ends, lost_starts, lost_ends = mongodb_events.split_documents(data, change_events=change_events)
    for first, last in zip(lost_starts, lost_ends, strict=True):
        damage.add(f"{file} at byte {first}", f"{last - first} bytes are no BSON document")
    begin = 0
    for row in range(1, len(starts) + 1):
        full = row < len(starts) and ends[row] - starts[begin] > _CHUNK_BYTES
        if row == len(starts) or full or starts[row] != ends[row - 1]:
            offsets = np.append(starts[begin:row], ends[row - 1])
            documents = pa.Array.from_buffers(
                pa.large_binary(), row - begin, [None, pa.py_buffer(offsets), pa.py_buffer(raw)]
            )
            yield _Chunk(file, documents, starts[begin:row])
            begin = row


def _sound(chunk: _Chunk, decoded: mongodb_events.MongodbEvents, damage: Damage) -> pa.RecordBatch:
    for row, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
        damage.add(chunk.place(row), reason)
    return decoded.events


def _captured(connector: Connector, options: MongodbOptions, database: str, collection: str) -> bool:
    table = f"{database}.{collection}"
    scope = {"deployment": "", "database": database, "collection": table}[options.scope]
    return connector.selects(table) and (options.scope == "deployment" or scope == options.target)


def _of_captured_tables(
    connector: Connector, options: MongodbOptions, events: pa.RecordBatch
) -> pa.RecordBatch:
    names = pc.binary_join_element_wise(events["database"], events["collection"], "\0").dictionary_encode()
    chosen = [_captured(connector, options, *name.split("\0")) for name in names.dictionary.to_pylist()]
    if all(chosen):
        return events
    return events.filter(pa.array(chosen, pa.bool_()).take(names.indices))


_EVENTS: Final[dict[str, Callable[[Connector, Recording, Damage], Iterator[pa.LargeStringArray]]]] = {
    "mongodb": _mongodb_events
}
