"""Joins change events over 16 MB, which the server sends in fragments (``$changeStreamSplitLargeEvent``)."""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.bson import as_bytes, find_in_all

_TOKEN: Final = b"_id"
_SPLIT: Final = b"splitEvent"


def join_fragments(fragments: list[bytes]) -> bytes:
    """Join the fragments of one event: all fields in order, the last token, no ``splitEvent``."""
    fields: list[bytes] = []
    token = b""
    for fragment in fragments:
        data = as_bytes(fragment)
        whole = np.array([0]), np.array([len(data)])
        removed = []
        for name in (_TOKEN, _SPLIT):
            _, starts, ends = find_in_all(data, *whole, name)
            removed.append((int(starts[0]) - len(name) - 2, int(ends[0])))
        token = fragment[slice(*removed[0])]
        at = 4
        for start, end in sorted(removed):
            fields.append(fragment[at:start])
            at = end
        fields.append(fragment[at:-1])
    body = token + b"".join(fields)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"
