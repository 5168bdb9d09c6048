"""Reasons why bytes could not be decoded: the numbers that kernels return, and their codes in messages.

A kernel returns the negative number; a quarantine record and :attr:`~..contract.Decoded.reasons` start with
the code.
"""

from __future__ import annotations

from typing import Final

TRUNCATED: Final = 1
UNKNOWN_COLUMN: Final = 2
UNKNOWN_TABLE: Final = 3
OTHER_TABLE: Final = 4
UNKNOWN_TAG: Final = 5
BAD_FLAGS: Final = 6
BAD_COUNT: Final = 7
BAD_SUBSET: Final = 8
BAD_CLUSTERING: Final = 9
BAD_MARKER: Final = 10
BAD_EXPIRY: Final = 11
DUPLICATE_CELL: Final = 12
TRAILING_BYTES: Final = 13
BAD_VALUE: Final = 14
UNORDERED_TYPE: Final = 15
SHADOWABLE: Final = 16
BAD_SNAPSHOT: Final = 17
UNKNOWN_SCHEMA: Final = 18
UNKNOWN_OPERATION: Final = 19
UNFINISHED_CHANGE: Final = 20
BAD_LOG_ROW: Final = 21
BAD_KEY: Final = 22
RENAMED_KEY: Final = 23

SIZE_CHECKSUM: Final = 32
SIZE_INVALID: Final = 33
ENTRY_BEYOND_SECTION: Final = 34
ENTRY_CHECKSUM: Final = 35
ZERO_SIZE: Final = 36
HEADER_UNREADABLE: Final = 37
MARKER_CHECKSUM: Final = 38
MARKER_TARGET: Final = 39
SECTION_UNREADABLE: Final = 40
ENDS_EARLY: Final = 41
HEADER_MISMATCH: Final = 42

NO_SPACE: Final = 100
"""Not a fault of the input: the output arrays are full; the caller enlarges them and calls again."""

CODES: Final = {
    TRUNCATED: ("truncated", "a length or number exceeds the end"),
    UNKNOWN_COLUMN: ("unknown-column", "a column that the schema has neither now nor as a dropped one"),
    UNKNOWN_TABLE: ("unknown-table", "no known schema has this table id"),
    OTHER_TABLE: ("other-table", "the update belongs to another table id than the schema's"),
    UNKNOWN_TAG: ("unknown-tag", "the payload's first byte is not a format of this version"),
    BAD_FLAGS: ("bad-flags", "flags that a mutation never has"),
    BAD_COUNT: ("bad-count", "an invalid count"),
    BAD_SUBSET: ("bad-subset", "the columns of a row don't match those of its update"),
    BAD_CLUSTERING: ("bad-clustering", "a clustering value has the wrong length for its type"),
    BAD_MARKER: ("bad-marker", "a range tombstone opens, closes or ends at the wrong position"),
    BAD_EXPIRY: ("bad-expiry", "a TTL, expiry or deletion time out of the version's range"),
    DUPLICATE_CELL: ("duplicate-cell", "two cells with one column and path in one row"),
    TRAILING_BYTES: ("trailing-bytes", "bytes are left after the end"),
    BAD_VALUE: ("bad-value", "a nested value violates the format of its type"),
    UNORDERED_TYPE: ("unordered-type", "a clustering column has a type without a known order"),
    SHADOWABLE: ("shadowable-deletion", "a deletion that only views of Cassandra 3 write"),
    BAD_SNAPSHOT: ("bad-snapshot", "a snapshot row violates its format"),
    UNKNOWN_SCHEMA: ("unknown-schema", "no record has the log's columns"),
    UNKNOWN_OPERATION: ("unknown-operation", "cdc$operation has an unknown code"),
    UNFINISHED_CHANGE: (
        "unfinished-change",
        "rows of the change are missing, according to its sequence numbers or its end",
    ),
    BAD_LOG_ROW: ("bad-log-row", "a log row lacks a required value, or has one of the wrong length"),
    BAD_KEY: (
        "bad-key",
        "a log row's partition key is incomplete, or differs from that of the change's first row",
    ),
    RENAMED_KEY: (
        "renamed-key",
        "the log no longer has the value of a key column that was renamed; a run takes a new snapshot",
    ),
    SIZE_CHECKSUM: (
        "size-checksum",
        "the checksum of an entry's size is wrong; the section's rest is skipped",
    ),
    SIZE_INVALID: ("size-invalid", "an entry is too short to be a mutation; the section's rest is skipped"),
    ENTRY_BEYOND_SECTION: ("entry-beyond-section", "an entry exceeds its section; it is skipped"),
    ENTRY_CHECKSUM: ("entry-checksum", "the checksum of an entry is wrong; it is skipped"),
    ZERO_SIZE: ("zero-size", "an entry of size 0 has data after it; the section's rest is skipped"),
    HEADER_UNREADABLE: ("header-unreadable", "the segment's header is corrupt; the segment is skipped"),
    MARKER_CHECKSUM: ("marker-checksum", "the checksum of a sync marker is wrong"),
    MARKER_TARGET: ("marker-target", "a sync marker points outside the file"),
    SECTION_UNREADABLE: ("section-unreadable", "a section can't be read or decompressed; it is skipped"),
    HEADER_MISMATCH: (
        "header-mismatch",
        "the header has the id of another segment than the file name; it is skipped",
    ),
    ENDS_EARLY: ("ends-early", "the segment's data end before the position in its index"),
}

MUTATION_CODES: Final = frozenset(name for number, (name, _) in CODES.items() if number < SIZE_CHECKSUM)
"""Codes of intact mutations that could not be decoded, but may be with another schema."""


def code(reason: int) -> str:
    """Return a reason's code, for example ``unknown-column``."""
    return CODES[reason][0]


def describe(reason: int, location: str) -> str:
    """Return a reason's text: its code, its meaning, and the location."""
    name, meaning = CODES[reason]
    return f"{name}: {meaning} ({location})"
