"""Options of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_cdc_provider.connector.signal_options import IncrementalOptions
from airflow_cdc_provider.custom_classes import invalid_import_path
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.patterns import matches_any, wrong_patterns

EVERY_TABLE: Final = (".*",)
"""Default selection of tables."""


def invalid_pattern(values: tuple[str, ...]) -> str:
    """Return what is expected of patterns of tables; empty if they are valid."""
    return wrong_patterns(values, "keyspace.table or database.collection")


OnLostPosition = Literal["auto", "fail", "fail_once", "snapshot", "continue"]


@dataclass(frozen=True)
class SnapshotOptions:
    """Options of snapshots."""

    mode: Literal["initial", "never", "always", "initial_only", "when_needed", "custom"] = option(
        "When to take snapshots. initial: each table once, before its first merge; never; always: in each "
        "run; initial_only: like initial, but changes are not captured; when_needed: like initial, and again "
        "when the position is lost; custom: a custom class decides",
        "initial",
    )
    custom: str = option(
        "Mode custom: package.module:Class, derived from "
        "airflow_cdc_provider.connector.snapshotter.Snapshotter",
        "",
        check=invalid_import_path,
    )
    custom_settings: Mapping[str, Any] = option(
        "Settings of the custom class; secrets as ${env:NAME} or ${file:PATH}", {}, secret=True
    )
    include: tuple[str, ...] = option(
        "Anchored regular expressions of tables to snapshot automatically; other tables are captured, and "
        "read only on demand",
        EVERY_TABLE,
        check=invalid_pattern,
    )
    on_lost_position: OnLostPosition = option(
        "When the source no longer has the changes after the stored offset. fail: fail each run until manual "
        "action; fail_once: fail this run, and take a new snapshot in the next; snapshot: take a new "
        "snapshot immediately; continue: skip the lost changes and report them. auto: snapshot with mode "
        "when_needed or always, else fail; fail_once if only some changes are lost, as in Cassandra",
        "auto",
    )
    filters: Mapping[str, str] = option(
        "Filters of snapshots by table, in the query language of the source", {}
    )
    rows_per_second: float = option("Maximum read rate of all tasks together; 0: unlimited", 0.0, minimum=0.0)
    incremental: IncrementalOptions = option(
        "Options of incremental snapshots, which are requested by signals", IncrementalOptions
    )

    def __post_init__(self) -> None:
        """Validate combinations of options.

        Raises:
            ConfigurationError: Options contradict each other.
        """
        if (self.mode == "custom") != bool(self.custom) or (self.custom_settings and not self.custom):
            raise ConfigurationError(
                "options snapshot.mode: custom and snapshot.custom require each other",
                expected="both, optionally with snapshot.custom_settings, or neither",
                found=f"mode {self.mode}, custom {self.custom or 'none'}",
            )
        if self.mode == "never" and self.on_lost_position in ("snapshot", "fail_once"):
            raise ConfigurationError(
                f"option snapshot.on_lost_position: {self.on_lost_position} requires a snapshot",
                expected="snapshot.mode other than never",
            )
        if self.mode == "when_needed" and self.on_lost_position not in ("auto", "snapshot"):
            raise ConfigurationError(
                "option snapshot.mode: when_needed takes a new snapshot when the position is lost",
                expected="snapshot.on_lost_position: snapshot or auto",
                found=self.on_lost_position,
            )

    def includes(self, table: str) -> bool:
        """Return whether a table is included in automatic snapshots."""
        return matches_any(self.include, table)
