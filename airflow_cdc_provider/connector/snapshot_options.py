"""Options of snapshots: whether and how tables are read in full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_cdc_provider.connector.signal_options import IncrementalOptions
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.plugins import wrong_place

EVERY_TABLE: Final = (".*",)
"""What a declaration selects that names no tables."""


def wrong_pattern(values: tuple[str, ...]) -> str:
    """Say what is expected of patterns of tables; an empty text for good ones."""
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions on keyspace.table or database.collection ({value!r}: {error})"
    return ""


OnLostPosition = Literal["auto", "fail", "fail_once", "snapshot", "go_on"]


@dataclass(frozen=True)
class SnapshotOptions:
    """Whether and how tables are read in full."""

    mode: Literal["initial", "never", "always", "initial_only", "when_needed", "custom"] = option(
        "initial: each table once, before its first merge; never; always: at each run; initial_only: as "
        "initial, and nothing is captured; when_needed: as initial, and anew when the position is lost; "
        "custom: a class of your own decides",
        "initial",
    )
    custom: str = option(
        "That class, derived from airflow_cdc_provider.connector.snapshotter.Snapshotter, as "
        "package.module:Class",
        "",
        check=wrong_place,
    )
    custom_settings: Mapping[str, Any] = option("What it is made with", {})
    include: tuple[str, ...] = option(
        "Anchored regular expressions of the tables that are read in full by themselves; the others are "
        "captured, and read when a task asks for it",
        EVERY_TABLE,
        check=wrong_pattern,
    )
    on_lost_position: OnLostPosition = option(
        "When the source no longer has what follows the stored offset. fail: each run, until a person acts; "
        "fail_once: this run, and the next reads the tables anew; snapshot: they are read anew at once; "
        "go_on: capture goes on, and what mirrors lack is told. auto: snapshot with mode when_needed and "
        "always, else fail, but fail_once where a source drops changes and goes on, as Cassandra may",
        "auto",
    )
    filters: Mapping[str, str] = option("Per table, a filter in the source's own language", {})
    rows_per_second: float = option(
        "Rows read at most, by all tasks together; 0: as fast as the source gives them", 0.0, minimum=0.0
    )
    incremental: IncrementalOptions = option(
        "How snapshots beside the stream read, which signals ask for", IncrementalOptions
    )

    def __post_init__(self) -> None:
        """Refuse choices that contradict each other.

        Raises:
            ConfigurationError: With what goes together.
        """
        if (self.mode == "custom") != bool(self.custom) or (self.custom_settings and not self.custom):
            raise ConfigurationError(
                "options snapshot.mode: custom and snapshot.custom go together",
                expected="both, with snapshot.custom_settings if need be, or none of them",
                found=f"mode {self.mode}, custom {self.custom or 'none'}",
            )
        if self.mode == "never" and self.on_lost_position in ("snapshot", "fail_once"):
            raise ConfigurationError(
                f"option snapshot.on_lost_position: {self.on_lost_position} needs a snapshot",
                expected="another snapshot.mode than never",
            )
        if self.mode == "when_needed" and self.on_lost_position not in ("auto", "snapshot"):
            raise ConfigurationError(
                "option snapshot.mode: when_needed reads tables anew when the position is lost",
                expected="snapshot.on_lost_position: snapshot, or none",
                found=self.on_lost_position,
            )

    def includes(self, table: str) -> bool:
        """Tell whether a table is read in full by itself."""
        return any(re.fullmatch(pattern, table) for pattern in self.include)
