r"""Formats VGTIDs as Debezium does: JSON in Gson's format, an object per shard.

``[{"keyspace":"shop","shard":"-80","gtid":"MySQL56/...:1-41","table_p_ks":[]},...]``, and during the copy
of a table, in ``table_p_ks``, ``{"table_name":...,"lastpk":{"fields":[{"name","type","charset","flags"}],
"rows":[{"lengths":["1"],"values":"7"}]}}``. The bytes of a last key are decoded as UTF-8, invalid ones as
U+FFFD. Gson escapes ``< > & = '`` too, as ``\u00XX``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, text_array
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import LEN, next_field
from airflow_cdc_provider.sources.vitess.protocol import TYPES, VGtid, parse

_PARTS: Final = (b'{"keyspace":"', b'","shard":"', b'","gtid":"', b'","table_p_ks":[]}')
_TEMPLATE: Final = np.frombuffer(b"".join(_PARTS), np.uint8)
_KEYSPACE: Final = len(_PARTS[0])
_SHARD: Final = _KEYSPACE + len(_PARTS[1])
_GTID: Final = _SHARD + len(_PARTS[2])
_ENTRY: Final = _GTID + len(_PARTS[3]) + 1
"""Size of an entry without its names, including the comma after it."""
_HTML: Final = re.compile("[<>&='\u2028\u2029]")


def vgtid_texts(data: Bytes, starts: Ints, ends: Ints, shards: Sequence[str] = ()) -> pa.Array:
    """Format VGTIDs.

    Args:
        data: A buffer.
        starts: First byte of each ``VGtid`` message in it.
        ends: Byte after each.
        shards: For each message the only shard to include (Debezium's transform UseLocalVgtid); none: all
            shards.

    Returns:
        Strings.

    Raises:
        CorruptInput: A message can't be parsed.
    """
    distinct = list(dict.fromkeys(shards))
    named, name_starts, name_ends = binary_buffer(pa.array([name.encode() for name in distinct], pa.binary()))
    number_of = {name: number for number, name in enumerate(distinct)}
    numbers = np.array([number_of[name] for name in shards] if shards else [-1] * len(starts), np.int64)
    offsets = np.zeros(len(starts) + 1, np.int64)
    out = np.empty(_max_size(data, starts, ends), np.uint8)
    not_copied = np.zeros(len(starts), np.bool_)
    _write(data, starts, ends, numbers, named, name_starts, name_ends, out, offsets, not_copied)
    written = text_array(out, offsets, ~not_copied)
    if not not_copied.any():
        return written
    rows = np.flatnonzero(not_copied).tolist()
    texts = pa.array(
        [vgtid_text(data[starts[row] : ends[row]].tobytes(), shards[row] if shards else "") for row in rows],
        pa.utf8(),
    )
    return pc.replace_with_mask(written, pa.array(not_copied), texts)


def unread_vgtids(data: Bytes, starts: Ints, ends: Ints) -> Ints:
    """Return the indexes of VGTIDs that :func:`vgtid_texts` can't format."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    out = np.empty(_max_size(data, starts, ends), np.uint8)
    not_copied = np.zeros(len(starts), np.bool_)
    none = np.zeros(0, np.int64)
    _write(data, starts, ends, np.full(len(starts), -1), out[:0], none, none, out, offsets, not_copied)
    return np.array(
        [row for row in np.flatnonzero(not_copied).tolist() if not _is_vgtid(data, starts[row], ends[row])],
        np.int64,
    )


def _is_vgtid(data: Bytes, start: int, end: int) -> bool:
    try:
        parse(VGtid, data[start:end].tobytes())
    except CorruptInput:
        return False
    return True


def vgtid_text(message: bytes, shard: str = "") -> str:
    """Format one VGTID with any contents, including last keys of a copy and names that need escaping.

    Args:
        message: The ``VGtid`` message.
        shard: The only shard to include; empty for all.

    Raises:
        CorruptInput: The message can't be parsed.
    """
    return _json([_shard(entry) for entry in parse(VGtid, message).shard_gtids if shard in ("", entry.shard)])


@walker
def _max_size(data: Bytes, starts: Ints, ends: Ints) -> Int:
    """Return the maximum size of the texts."""
    total = np.int64(0)
    for row in range(len(starts)):
        total += ends[row] - starts[row] + 2
        at = starts[row]
        while at < ends[row]:
            number, _, _, _, after = next_field(data, at, ends[row])
            if number < 0:
                break
            total += _ENTRY
            at = after
    return total


@walker
def _write(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    shards: Ints,
    named: Bytes,
    name_starts: Ints,
    name_ends: Ints,
    out: Bytes,
    offsets: Ints,
    not_copied: Flags,
) -> None:
    """Format messages that only need copying; mark the others."""
    used = np.int64(0)
    for row in range(len(starts)):
        first = name_starts[shards[row]] if shards[row] >= 0 else np.int64(0)
        last = name_ends[shards[row]] if shards[row] >= 0 else np.int64(-1)
        end = _write_one(data, starts[row], ends[row], named, first, last, out, used)
        if end < 0:
            not_copied[row] = True
        else:
            used = end
        offsets[row + 1] = used


@walker
def _write_one(
    data: Bytes, at: Int, end: Int, named: Ints, first: Int, last: Int, out: Bytes, used: Int
) -> Int:
    """Format one message; return the offset after its text, or -1 if it needs escaping or has last keys."""
    out[used] = 91
    used += 1
    begin = used
    while at < end:
        number, kind, _, content, after = next_field(data, at, end)
        if number != 1 or kind != LEN:
            return np.int64(-1)
        keyspace_start = keyspace_end = shard_start = shard_end = gtid_start = gtid_end = content
        inner = content
        while inner < after:
            part, part_kind, _, part_start, part_end = next_field(data, inner, after)
            if part_kind != LEN or part < 1 or part > 3 or not _is_plain(data, part_start, part_end):
                return np.int64(-1)
            if part == 1:
                keyspace_start, keyspace_end = part_start, part_end
            elif part == 2:
                shard_start, shard_end = part_start, part_end
            else:
                gtid_start, gtid_end = part_start, part_end
            inner = part_end
        at = after
        if last >= 0 and not _same(data, shard_start, shard_end, named, first, last):
            continue
        if used > begin:
            out[used] = 44
            used += 1
        used = copy(_TEMPLATE, 0, _KEYSPACE, out, used)
        used = copy(data, keyspace_start, keyspace_end - keyspace_start, out, used)
        used = copy(_TEMPLATE, _KEYSPACE, _SHARD - _KEYSPACE, out, used)
        used = copy(data, shard_start, shard_end - shard_start, out, used)
        used = copy(_TEMPLATE, _SHARD, _GTID - _SHARD, out, used)
        used = copy(data, gtid_start, gtid_end - gtid_start, out, used)
        used = copy(_TEMPLATE, _GTID, _ENTRY - 1 - _GTID, out, used)
    out[used] = 93
    return used + 1


@walker
def _is_plain(data: Bytes, start: Int, end: Int) -> bool:
    for i in range(start, end):
        byte = data[i]
        if byte < 32 or byte > 126 or byte in (34, 38, 39, 60, 61, 62, 92):
            return False
    return True


@walker
def _same(data: Bytes, start: Int, end: Int, other: Ints, first: Int, last: Int) -> bool:
    if end - start != last - first:
        return False
    different = 0
    for i in range(end - start):
        different |= data[start + i] ^ other[first + i]
    return different == 0


def _shard(entry: Any) -> dict[str, Any]:
    return {
        "keyspace": entry.keyspace,
        "shard": entry.shard,
        "gtid": entry.gtid,
        "table_p_ks": [_last_key(table) for table in entry.table_p_ks],
    }


def _last_key(table: Any) -> dict[str, Any]:
    if not table.HasField("lastpk"):
        return {"table_name": table.table_name}
    fields = [
        {"name": f.name, "type": TYPES.get(f.type, str(f.type)), "charset": f.charset, "flags": f.flags}
        for f in table.lastpk.fields
    ]
    rows = [
        {"lengths": [str(n) for n in row.lengths], "values": row.values.decode("utf-8", "replace")}
        for row in table.lastpk.rows
    ]
    return {"table_name": table.table_name, "lastpk": {"fields": fields, "rows": rows}}


def _json(entries: Sequence[dict[str, Any]]) -> str:
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False)
    return _HTML.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
