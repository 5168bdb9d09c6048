"""The folder of a landing area for segments that a transfer set apart, and the notes that tell why."""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.stores import Store

ERRORS: Final = "errors"
"""The folder's name; below it are folders by host id."""

NOTE_SUFFIX: Final = ".reason.json"
"""Follows a segment's name."""

_log = logging.getLogger(__name__)


def write_note(errors: Store, segment: Segment, reason: str, *, lost: bool) -> None:
    """Write beside a segment why it was set apart.

    Args:
        errors: The node's folder of errors.
        segment: The segment; it may be there, or not.
        reason: For people.
        lost: Whether changes are gone for good: capture then reads the tables anew.
    """
    note = {
        "segment": segment.name,
        "host": segment.host,
        "reason": reason,
        "lost": lost,
        "at": time.time(),
    }
    errors.write(segment.name + NOTE_SUFFIX, [json.dumps(note).encode()])


def tells_loss(errors: Store, name: str) -> bool:
    """Tell whether the note beside a segment says that changes are gone for good.

    Args:
        errors: The node's folder of errors.
        name: The segment's.
    """
    try:
        note = json.loads(b"".join(errors.read(name + NOTE_SUFFIX)))
    except FileNotFoundError:
        return False
    except ValueError:
        _log.warning("%s%s is no note of a transfer", name, NOTE_SUFFIX)
        return False
    return isinstance(note, dict) and bool(note.get("lost"))
