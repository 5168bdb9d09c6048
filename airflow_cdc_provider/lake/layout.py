"""Versions of the layouts in which the provider stores tables in the lake.

A table bears its layout as the table property ``cdc.layout``: the kind of its content and a version, such as
``changes/2``. Whatever changes the meaning of stored data raises the version of its kind, here, and describes
the difference in docs/design/stored-layout.md. A table of any other layout is refused before it is read or
written.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError

LAYOUT_PROPERTY: Final = "cdc.layout"
"""Table property that holds a :class:`Layout` as text."""


@dataclass(frozen=True)
class Layout:
    """The layout of one kind of table.

    Args:
        content: The kind: what such tables hold.
        version: Raised when stored data change their meaning.
    """

    content: str
    version: int

    def __str__(self) -> str:
        """Return the value of :data:`LAYOUT_PROPERTY`."""
        return f"{self.content}/{self.version}"

    def require(self, table: str, found: str | None) -> None:
        """Refuse a table that was written in another layout.

        Args:
            table: The table's name.
            found: Its property :data:`LAYOUT_PROPERTY`, None if it has none.

        Raises:
            ConfigurationError: It has another layout, or none.
        """
        if found == str(self):
            return
        content, _, version = (found or "").partition("/")
        if content == self.content and version.isdigit() and int(version) > self.version:
            problem = "was written by a newer release"
            remedy = "upgrade the provider"
        elif content and content != self.content:
            problem = f"holds {content}, not {self.content}"
            remedy = "give the connector a name, or a namespace, of its own"
        else:
            problem = "was written by an older release, or not by this provider"
            remedy = "drop it, with the other tables of the connector, and take new snapshots"
        raise ConfigurationError(
            f"the table {table} {problem}",
            expected=f"the table property {LAYOUT_PROPERTY} = {self}",
            found=f"{LAYOUT_PROPERTY} = {found}" if found else f"no property {LAYOUT_PROPERTY}",
            remedy=remedy,
        )


CHANGES: Final = Layout("changes", 2)
MIRROR: Final = Layout("mirror", 2)
STATIC_COLUMNS: Final = Layout("static_columns", 2)
TOMBSTONES: Final = Layout("tombstones", 2)
QUARANTINE: Final = Layout("quarantine", 2)
DEAD_LETTERS: Final = Layout("dead_letters", 2)
NOTIFICATIONS: Final = Layout("notifications", 2)
PUBLISHED: Final = Layout("published", 2)

MOST_OFFSET_CHARACTERS: Final = 8192
"""Longest offset in the properties of a commit, which metadata has once for each retained snapshot."""
TOMBSTONES_SUFFIX: Final = "__tombstones"
"""What follows a mirror's name in that of its tombstone table."""
STATIC_COLUMNS_SUFFIX: Final = "__static_columns"
"""What follows a mirror's name in that of its static columns table."""
_LONGEST: Final = 255
"""Characters of a table's name that all catalogs take: Glue, JDBC, Hive, and folders of a Hadoop catalog."""
_DIGEST: Final = 32


def table_name(name: str, suffix: str = "") -> str:
    """Return ``namespace.table`` and a suffix; what is too long for catalogs ends with a digest of it."""
    namespace, _, table = name.rpartition(".")
    longest = _LONGEST - len(suffix)
    if len(table) > longest:
        digest = hashlib.sha256(table.encode()).hexdigest()[:_DIGEST]
        table = f"{table[: longest - _DIGEST - 1]}_{digest}"
    return f"{namespace}.{table}{suffix}"
