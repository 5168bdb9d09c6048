"""A landing area's folder of quarantined segments, and the notes with the reasons."""

from __future__ import annotations

import json
import time
from typing import Final

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.stores import Store, read_small

ERRORS: Final = "errors"
"""The folder's name; it has subfolders by host id."""

NOTE_SUFFIX: Final = ".reason.json"
"""Suffix of a note's name after the segment's."""

_log = logger(__name__)


def write_note(errors: Store, segment: Segment, reason: str, *, lost: bool) -> None:
    """Write the reason for which a segment was quarantined.

    Args:
        errors: The node's folder of errors.
        segment: The segment; it need not be in the folder.
        reason: The reason, as text.
        lost: Whether changes are lost: capture then takes new snapshots of the tables.
    """
    note = {
        "segment": segment.name,
        "host": segment.host,
        "reason": reason,
        "lost": lost,
        "at": time.time(),
    }
    errors.write(segment.name + NOTE_SUFFIX, [json.dumps(note).encode()])


def reports_loss(errors: Store, name: str) -> bool:
    """Return whether the note of a segment reports lost changes.

    Args:
        errors: The node's folder of errors.
        name: The segment's name.
    """
    try:
        note = json.loads(read_small(errors, name + NOTE_SUFFIX))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError, OSError, CorruptInput):
        _log.warning("%s%s is not a note of a transfer", name, NOTE_SUFFIX)
        return False
    return isinstance(note, dict) and bool(note.get("lost"))
