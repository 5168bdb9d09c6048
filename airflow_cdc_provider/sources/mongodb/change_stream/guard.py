"""Validates the output of custom stages, so that they can't break a capture unnoticed.

MongoDB itself refuses stages that change an event's ``_id``. For the other required members, :mod:`.stages`
detects stages that certainly remove them; removals that depend on data are detected here, at the first event
without a required member. Splitting comes after the custom stages, so fragments of a split event are not
validated; the next complete event of the collection is.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import DOCUMENT, INT32, NULL, STRING, TIMESTAMP, Spans
from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.sources.mongodb.change_stream import change_event
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import OPERATIONS, operation_numbers
from airflow_cdc_provider.sources.mongodb.decoding.paths import Paths

_MEMBERS: Final = Paths(
    [
        ("operationType",),
        ("clusterTime",),
        ("ns", "db"),
        ("ns", "coll"),
        ("documentKey", "_id"),
        ("fullDocument",),
        ("fullDocument", "_id"),
        ("splitEvent", "fragment"),
    ]
)
_OF_ROWS: Final = (change_event.INSERT, change_event.UPDATE, change_event.REPLACE, change_event.DELETE)
_WITH_DOCUMENT: Final = (change_event.INSERT, change_event.REPLACE)

Flags = npt.NDArray[np.bool_]


def require_members(data: Bytes, spans: Spans, *, full_document: bool) -> None:
    """Verify that events have the members that capture requires.

    Args:
        data: The buffer.
        spans: Spans of the events in it.
        full_document: Whether updates must have a document, or null.

    Raises:
        ConfigurationError: A member is missing; the message names the first such event and the member.
    """
    found = _MEMBERS.find(data, spans.starts, spans.ends)
    operation, clock, database, collection, key, document, identity, fragment = (
        found.values(row) for row in range(len(found.kinds))
    )
    whole = fragment.kinds != INT32
    numbers = operation_numbers(data, operation)
    of_rows = np.isin(numbers, _OF_ROWS)
    carries = np.isin(numbers, _WITH_DOCUMENT)
    is_update = numbers == change_event.UPDATE
    no_document = carries & (document.kinds != DOCUMENT)
    if full_document:
        no_document |= is_update & (document.kinds != DOCUMENT) & (document.kinds != NULL)
    lacking: dict[str, Flags] = {
        "operationType": operation.kinds != STRING,
        "clusterTime": clock.kinds != TIMESTAMP,
        "ns.db": of_rows & (database.kinds != STRING),
        "ns.coll": of_rows & (collection.kinds != STRING),
        "documentKey._id": of_rows & (key.kinds == 0),
        "fullDocument": no_document,
        "fullDocument._id": of_rows & (document.kinds == DOCUMENT) & (identity.kinds == 0),
    }
    for member, flags in lacking.items():
        rows = np.flatnonzero(flags & whole)
        if not len(rows):
            continue
        row = int(rows[0])
        names = [part.text(data, row) for part in (database, collection)]
        kind = OPERATIONS[int(numbers[row])] or "?"
        raise ConfigurationError(
            "a stage of source.stream.pipeline removes a member that capture requires",
            expected=f"{member} as MongoDB sends it",
            found=f"event {kind} of {'.'.join(filter(None, names)) or '?'} without it",
            remedy="keep it in $project, $unset and $replaceRoot, or filter out such events with $match",
        )
