"""Options of a Vitess source. Light: read by DAG files."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class VitessAdvanced:
    """Options that few users need."""

    strict: bool = option("Fail on the first broken or undecodable event instead of setting it apart", False)


@dataclass(frozen=True)
class VitessOptions:
    """What to read."""

    conn_id: str = option("Airflow connection of VTGate; not needed offline", "")
    keyspace: str = option("Keyspace to read; /expression for all that match it", "")
    shards: tuple[str, ...] = option("Shards to read; none: all of the keyspace", ())
    advanced: VitessAdvanced = option("Options that few users need", VitessAdvanced)
