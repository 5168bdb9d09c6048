"""Offsets stored by Kafka Connect, Debezium Engine or Debezium Server, for any connector.

There are four formats::

    {"offsets": [{"partition": P, "offset": O}, ...]}     GET /connectors/NAME/offsets of Connect's REST API
    ["NAME", P] O                                         one line per record of the topic connect-offsets
    O                                                     a single offset
    aced0005...                                           the file of FileOffsetBackingStore: a Java HashMap,
                                                          keys and values byte arrays with JSON as above

P is the source partition and O the offset; both are JSON objects, optionally wrapped with their schema
(``{"schema": ..., "payload": ...}``). The last record of a key wins; a null deletes the key.
``PATCH /connectors/NAME/offsets`` accepts the first format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

Stored = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Partition and offset."""

_JAVA: Final = b"\xac\xed\x00\x05"


def is_connect_offset_file(content: bytes, members: Iterable[str]) -> bool:
    """Return whether a file contains offsets in one of these formats rather than ours.

    Args:
        content: The file's bytes.
        members: Member names that identify a single offset.
    """
    if content.startswith(_JAVA):
        return True
    try:
        first, _ = json.JSONDecoder().raw_decode(content.decode().lstrip())
    except ValueError:
        return False
    if isinstance(first, list):
        return True
    return isinstance(first, dict) and bool({"offsets", "partition", *members} & set(first))


def read_connect_offsets(content: bytes, database: str) -> list[Stored]:
    """Read all offsets of a file.

    Args:
        content: The file's bytes.
        database: Name of the connector's database, for error messages.

    Returns:
        Pairs of partition and offset; a single offset has an empty partition.

    Raises:
        ConfigurationError: The file has none of the formats.
    """
    try:
        if content.startswith(_JAVA):
            pairs = [(json.loads(key), json.loads(value)) for key, value in _java_map(content)]
        else:
            pairs = list(_pairs(content.decode()))
        found = {json.dumps(key, sort_keys=True): _stored(key, value) for key, value in pairs}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigurationError(
            f"not a valid offset of Debezium's connector for {database}",
            expected="the response of GET /connectors/NAME/offsets, records of connect-offsets with keys, or "
            "the file of offset.storage.file.filename",
            found=str(error)[:200],
        ) from None
    return [offset for offset in found.values() if offset is not None]


def to_rest(offsets: Iterable[Stored]) -> str:
    """Format offsets for ``PATCH /connectors/NAME/offsets`` of Connect's REST API."""
    entries = [{"partition": dict(partition), "offset": dict(offset)} for partition, offset in offsets]
    return json.dumps({"offsets": entries}, indent=2)


def _stored(key: Any, value: Any) -> Stored | None:
    """Return the offset of a record; None if the record deletes it."""
    partition = _payload(key)
    if isinstance(partition, list):
        partition = partition[-1]
    members = _payload(value)
    return None if members is None else (dict(partition), dict(members))


def _payload(value: Any) -> Any:
    return value["payload"] if isinstance(value, dict) and set(value) == {"schema", "payload"} else value


def _pairs(text: str) -> Iterator[tuple[Any, Any]]:
    """Yield partitions and offsets of the JSON formats."""
    decoder = json.JSONDecoder()
    at = len(text) - len(text.lstrip())
    first, end = decoder.raw_decode(text, at)
    if isinstance(first, dict):
        if text[end:].strip():
            raise ValueError("unexpected text after the first object")
        entries = first.get("offsets", [first])
        for entry in entries:
            yield (entry["partition"], entry["offset"]) if "partition" in entry else ({}, entry)
        return
    for line in filter(str.strip, text.splitlines()):
        key, end = decoder.raw_decode(line.strip())
        rest = line.strip()[end:].lstrip("\t :=|,")
        yield key, json.loads(rest)


def _java_map(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a serialized ``HashMap<byte[], byte[]>`` (Java Object Serialization, ch. 6).

    The class description of HashMap with its two fields is followed by their values, a block with capacity
    and size, then alternating keys and values: byte arrays (TC_ARRAY), the first with its class description,
    the others with a reference to it.
    """
    body = content.index(b"\x77\x08") + 2  # TC_BLOCKDATA of eight bytes
    count = int.from_bytes(content[body + 4 : body + 8], "big")
    at = body + 8
    values: list[bytes] = []
    for _ in range(2 * count):
        if content[at] == 0x70:  # TC_NULL, a deleted value
            values.append(b"null")
            at += 1
            continue
        if content[at] != 0x75:
            raise ValueError(f"not a byte array at byte {at}")
        if content[at + 1] == 0x72:  # TC_CLASSDESC
            at = content.index(b"\x78\x70", at) + 2
        elif content[at + 1] == 0x71:  # TC_REFERENCE
            at += 6
        else:
            raise ValueError(f"no array class at byte {at}")
        size = int.from_bytes(content[at : at + 4], "big")
        values.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    yield from zip(values[::2], values[1::2], strict=True)
