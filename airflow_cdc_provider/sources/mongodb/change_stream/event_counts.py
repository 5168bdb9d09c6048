"""Counts change events by operation, one batch at a time."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.sources.mongodb.change_stream import change_event
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import Facts

_UUID_BYTES: Final = 16


def count_events(
    counts: Counter[str],
    data: Bytes,
    facts: Facts,
    captured: npt.NDArray[np.bool_],
    of_rows: npt.NDArray[np.bool_],
) -> None:
    """Count events.

    ``creates``, ``updates`` (including replaces) and ``deletes`` are changes of captured collections,
    ``filtered`` of others, and ``broken`` events can't be parsed. ``transactions`` counts starts of
    transactions: the first event of one that started in the previous batch has an index above 0.

    Args:
        counts: The counters to add to.
        data: The buffer.
        facts: The facts of all events, in stream order.
        captured: Which events are changes of rows of captured collections.
        of_rows: Which events are changes of rows.
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
    # A session runs one transaction at a time, and each has its own number and cluster time.
    uuids = data[facts.sessions.starts[inside][:, None] + np.arange(_UUID_BYTES)]
    same = np.zeros(len(inside), np.bool_)
    same[1:] = (
        (uuids[1:] == uuids[:-1]).all(axis=1)
        & (facts.txn_numbers[inside][1:] == facts.txn_numbers[inside][:-1])
        & (facts.times[inside][1:] == facts.times[inside][:-1])
    )
    same[0] = int(inside[0]) == 0 and int(facts.indexes[0]) > 0
    counts["transactions"] += int((~same).sum())
