"""Position of publishing after merges: per mirror the snapshot whose rows are published.

It is the ``state`` of a position (:mod:`.positions`), whose ``batch`` counts the steps: what one mirror's
rows became from one snapshot to another::

    {"v": 1, "tables": {"db.orders": {"table_id": "...", "snapshot": "42", "batch": 12}},
     "step": {"table": "db.orders", "until": {...}, "columns": ["document"]}}

``tables`` is the state before the step, ``step`` the one of which ``records`` of the position were sent, null
between two steps. A step is the same sequence of records each time it is computed: both of its snapshots are
kept from expiry as long as a position refers to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from airflow_cdc_provider.exceptions import OffsetMissing

_VERSION: Final = 1


@dataclass(frozen=True)
class PublishedSnapshot:
    """The published state of one mirror.

    Args:
        table_id: UUID of the mirror's table; a re-created table has another one.
        snapshot: The snapshot that holds the rows.
        batch: The last batch of the changes table that is merged in it.
    """

    table_id: str
    snapshot: str
    batch: int


@dataclass(frozen=True)
class Step:
    """The step that is being published.

    Args:
        table: The source's table.
        until: The published state of its mirror after the step.
        columns: Columns of the mirror that are compared and published in addition to the stored states.
    """

    table: str
    until: PublishedSnapshot
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class MergedPosition:
    """Position of a connector's mirrors in publishing; see the module."""

    tables: Mapping[str, PublishedSnapshot] = field(default_factory=dict)
    step: Step | None = None

    def reached(self) -> MergedPosition:
        """Return the position after the step."""
        if self.step is None:
            return self
        return MergedPosition({**self.tables, self.step.table: self.step.until})

    def snapshots(self, table: str) -> set[str]:
        """Return the snapshots of a table's mirror that must not expire."""
        kept = {self.tables[table].snapshot} if table in self.tables else set()
        return kept | ({self.step.until.snapshot} if self.step and self.step.table == table else set())

    def to_json(self) -> str:
        """Write it as the state of a position."""
        return json.dumps({"v": _VERSION, **asdict(self)}, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None) -> MergedPosition:
        """Read the output of :meth:`to_json`.

        Raises:
            OffsetMissing: The text is invalid or has another version.
        """
        try:
            values: dict[str, Any] = json.loads(text or "")
            if values["v"] != _VERSION:
                raise ValueError("another version")
            tables = {table: PublishedSnapshot(**place) for table, place in values["tables"].items()}
            step = values["step"]
            if step is not None:
                step = Step(step["table"], PublishedSnapshot(**step["until"]), tuple(step["columns"]))
            return cls(tables, step)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OffsetMissing(
                "the stored position of publishing after merges can't be read",
                expected=f"a position of version {_VERSION}",
                found=(text or "nothing")[:200],
                remedy="use the version of this package that wrote it, or publish all rows again with "
                "airflow cdc offsets publish-from --batch 1",
            ) from error
