"""Position of publishing after merges: per mirror the snapshot whose rows are published.

It is the ``state`` of a position (:mod:`.positions`), whose ``batch`` counts the steps: what one mirror's
rows became from one snapshot to another::

    {"v": 2, "tables": {"db.orders": {"table_id": "...", "snapshot": "42", "batch": 12}},
     "step": {"table": "db.orders", "until": {...}, "columns": ["document"], "records": 0, ...},
     "failed": [{"table": "db.items", ..., "records": 200, "now_ns": 0, "form": "..."}]}

``tables`` is the state before the step, ``step`` the one of which ``records`` of the position were sent, null
between two steps. ``failed`` are the steps that failed after some of their records were sent; they resume
after those. A step is the same sequence of records each time it is computed: both of its snapshots are kept
from expiry as long as a position refers to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import OffsetMissing

_VERSION: Final = 2


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
    """What one mirror's rows became.

    Args:
        table: The source's table.
        until: The published state of its mirror after the step.
        columns: Columns of the mirror that are compared and published in addition to the stored states.
        records: Number of records that were sent before it failed.
        now_ns: Build time of its events, if it failed.
        form: Form of its events, if it failed.
    """

    table: str
    until: PublishedSnapshot
    columns: tuple[str, ...] = ()
    records: int = 0
    now_ns: int = 0
    form: str = ""

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Step:
        """Read a step of :meth:`MergedPosition.to_json`."""
        until, columns = PublishedSnapshot(**values["until"]), tuple(values["columns"])
        return cls(**{**values, "until": until, "columns": columns})


@dataclass(frozen=True)
class MergedPosition:
    """Position of a connector's mirrors in publishing; see the module."""

    tables: Mapping[str, PublishedSnapshot] = field(default_factory=dict)
    step: Step | None = None
    failed: tuple[Step, ...] = ()

    def reached(self) -> MergedPosition:
        """Return the position after the step."""
        if self.step is None:
            return self
        return replace(self, tables={**self.tables, self.step.table: self.step.until}, step=None)

    def within(self, step: Step) -> MergedPosition:
        """Return the position within a step, which may have failed before."""
        return replace(self, step=step, failed=tuple(s for s in self.failed if s.table != step.table))

    def snapshots(self, table: str) -> set[str]:
        """Return the snapshots of a table's mirror that must not expire."""
        kept = {self.tables[table].snapshot} if table in self.tables else set()
        steps = self.failed if self.step is None else (self.step, *self.failed)
        return kept | {step.until.snapshot for step in steps if step.table == table}

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
            step = None if values["step"] is None else Step.from_plain(values["step"])
            return cls(tables, step, tuple(map(Step.from_plain, values["failed"])))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OffsetMissing(
                "the stored position of publishing after merges can't be read",
                expected=f"a position of version {_VERSION}",
                found=(text or "nothing")[:200],
                remedy="use the version of this package that wrote it, or publish all rows again with "
                "airflow cdc offsets publish-from --batch 1",
            ) from error
