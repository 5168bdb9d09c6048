r"""VGTIDs as the text that Debezium stores and shows: JSON as Gson writes it, an object per shard.

``[{"keyspace":"shop","shard":"-80","gtid":"MySQL56/...:1-41","table_p_ks":[]},...]``, and while a table is
copied, in ``table_p_ks``, ``{"table_name":...,"lastpk":{"fields":[{"name","type","charset","flags"}],
"rows":[{"lengths":["1"],"values":"7"}]}}``. The bytes of a last key are shown as UTF-8, U+FFFD for what is
none. Gson escapes ``< > & = '`` too, as ``\u00XX``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.protocol import TYPES, VGtid

_HTML: Final = re.compile("[<>&='\u2028\u2029]")


def vgtid_text(message: bytes, shard: str = "") -> str:
    """Write a VGTID.

    Args:
        message: The ``VGtid`` message.
        shard: Show this shard's entry alone (Debezium's transform UseLocalVgtid); empty for all.

    Raises:
        CorruptInput: It is none.
    """
    try:
        vgtid = VGtid.FromString(message)
    except DecodeError as error:
        raise CorruptInput("a VGTID can't be read", found=str(error)) from error
    return _json([_shard(entry) for entry in vgtid.shard_gtids if shard in ("", entry.shard)])


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
