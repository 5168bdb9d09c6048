"""Change events counted by what they are, whole batches at once."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.spans import Bytes
from airflow_cdc_provider.sources.mongodb import change_event
from airflow_cdc_provider.sources.mongodb.change_event import Facts

_UUID_BYTES: Final = 16


def count_events(
    counts: Counter[str],
    data: Bytes,
    facts: Facts,
    captured: npt.NDArray[np.bool_],
    of_rows: npt.NDArray[np.bool_],
) -> None:
    """Add up events.

    ``creates``, ``updates`` (replaces too) and ``deletes`` are of captured collections, ``filtered`` of
    others, ``broken`` can't be read. ``transactions`` counts where one begins: one that the batch before has
    begun does not have its first event here, as events of a cluster time are numbered from 0 on.

    Args:
        counts: Gets them.
        data: The buffer.
        facts: Of all events, in stream order.
        captured: Which of them are changes of rows of captured collections.
        of_rows: Which are changes of rows.
    """
    kinds = np.bincount(facts.operations[captured], minlength=len(change_event.OPERATIONS))
    counts["creates"] += int(kinds[change_event.INSERT])
    counts["updates"] += int(kinds[change_event.UPDATE] + kinds[change_event.REPLACE])
    counts["deletes"] += int(kinds[change_event.DELETE])
    counts["filtered"] += int(of_rows.sum() - captured.sum())
    counts["broken"] += int((~facts.complete).sum())
    inside = np.flatnonzero(captured & (facts.sessions.kinds > 0))
    if not len(inside):
        return
    # A session runs one transaction at a time, and each has a number and a cluster time of its own.
    uuids = data[facts.sessions.starts[inside][:, None] + np.arange(_UUID_BYTES)]
    same = np.zeros(len(inside), np.bool_)
    same[1:] = (
        (uuids[1:] == uuids[:-1]).all(axis=1)
        & (facts.txn_numbers[inside][1:] == facts.txn_numbers[inside][:-1])
        & (facts.times[inside][1:] == facts.times[inside][:-1])
    )
    same[0] = int(inside[0]) == 0 and int(facts.indexes[0]) > 0
    counts["transactions"] += int((~same).sum())
