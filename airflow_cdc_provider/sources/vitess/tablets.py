"""Queries tablets: serving state, binlogs, and keys of tables.

No MySQL account is needed, because VTGate forwards statements to the tablet of a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.sources.vitess.gtid import GtidSet, is_real
from airflow_cdc_provider.sources.vitess.position import overlap
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

SERVING: Final = "SERVING"
_MYSQL: Final = "MySQL56"
_VARIABLES: Final = (
    "gtid_purged",
    "gtid_executed",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_value_options",
    "binlog_expire_logs_seconds",
)


@dataclass(frozen=True)
class Tablet:
    """A tablet as listed by VTGate.

    Args:
        type: ``PRIMARY``, ``REPLICA`` or ``RDONLY``.
        state: ``SERVING`` or ``NOT_SERVING``.
    """

    cell: str
    keyspace: str
    shard: str
    type: str
    state: str
    alias: str


@dataclass(frozen=True)
class Binlogs:
    """Binlog settings of a tablet's MySQL server.

    Args:
        purged: The transactions whose binlogs were purged; None if the server doesn't report them (MariaDB).
        expire_seconds: Retention, 0 for unlimited, None if unknown.
        row_image: ``FULL``, ``NOBLOB`` or ``MINIMAL``.
        partial_json: Whether updates of JSON may be partial.
    """

    purged: GtidSet | None
    expire_seconds: int | None
    row_image: str
    partial_json: bool

    def has_after(self, gtid: str) -> bool:
        """Return whether the binlogs contain all transactions after a position."""
        if self.purged is None or not gtid.startswith(_MYSQL):
            return True
        return GtidSet.parse(gtid).contains(self.purged)


def list_tablets(client: VtgateClient, keyspace: str, seconds: float) -> list[Tablet]:
    """List the tablets of a keyspace.

    Args:
        client: The client.
        keyspace: The keyspace.
        seconds: Timeout.
    """
    rows = client.execute("SHOW VITESS_TABLETS", timeout_seconds=seconds).texts()
    return [tablet for row in rows if (tablet := Tablet(*row[:6])).keyspace == keyspace]


def shards_in_reshard(tablets: Sequence[Tablet]) -> list[str]:
    """List the shards with tablets that overlap other shards with tablets, sorted.

    VTGate lists only serving shards, but the new and old shards of a running reshard have tablets too.
    """
    shards = sorted({f"{tablet.keyspace}/{tablet.shard}" for tablet in tablets})
    return [one for one in shards if any(overlap(one, other) for other in shards if other != one)]


def read_binlogs(client: VtgateClient, target: str, seconds: float) -> Binlogs:
    """Query the binlog settings of a tablet.

    Args:
        client: The client.
        target: ``keyspace:shard@type``.
        seconds: Timeout.
    """
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    rows = client.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", target, seconds).texts()
    variables = {name.lower(): value for name, value in rows}
    purged = variables.get("gtid_purged")
    expire = variables.get("binlog_expire_logs_seconds", "")
    return Binlogs(
        None if purged is None else GtidSet.parse(f"{_MYSQL}/{purged}"),
        int(expire) if expire.isdigit() else None,
        variables.get("binlog_row_image", ""),
        "PARTIAL_JSON" in variables.get("binlog_row_value_options", ""),
    )


def require_binlogs_retained(
    client: VtgateClient, positions: Mapping[str, str], tablet_type: str, seconds: float
) -> None:
    """Reject a position if the binlogs after it were purged.

    VTGate doesn't report this: it looks for another tablet for 90 seconds, and then returns an error that
    there is none. Tablets of the same type may retain different binlogs, so a shard counts as lost only if
    repeated queries, two per further tablet, don't find the binlogs.

    Args:
        client: The client.
        positions: GTID set by ``keyspace/shard``.
        tablet_type: The type of the tablets to read.
        seconds: Timeout of each query.

    Raises:
        PositionLost: The binlogs of a shard were purged.
    """
    for shard, gtid in positions.items():
        if not is_real(gtid):
            continue
        keyspace, _, name = shard.partition("/")
        target = f"{keyspace}:{name}@{tablet_type.lower()}"
        binlogs = read_binlogs(client, target, seconds)
        if binlogs.has_after(gtid):
            continue
        tablets = list_tablets(client, keyspace, seconds)
        count = sum((t.shard, t.type) == (name, tablet_type) for t in tablets)
        if any(read_binlogs(client, target, seconds).has_after(gtid) for _ in range(2 * (count - 1))):
            continue
        raise PositionLost(
            f"binlogs of {shard} after the stored offset were purged",
            expected=f"purged transactions contained in {gtid}",
            found=str(binlogs.purged),
            remedy="take a new snapshot; then capture more often, or raise binlog_expire_logs_seconds",
        )


def columns_of_tables(client: VtgateClient, target: str, seconds: float) -> dict[str, dict[str, str]]:
    """Return the columns of all tables of a keyspace, in order: name and type, without its arguments.

    Args:
        client: The client.
        target: ``keyspace:shard@type``.
        seconds: Timeout.
    """
    rows = client.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = database() ORDER BY table_name, ordinal_position",
        target,
        seconds,
    ).texts()
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        found.setdefault(str(table), {})[str(column)] = str(kind).lower()
    return found


def keyless_tables(client: VtgateClient, target: str, tables: Sequence[str], seconds: float) -> list[str]:
    """List the tables that have neither a primary key nor a unique key without nullable columns.

    Args:
        client: The client.
        target: ``keyspace:shard@type``.
        tables: Names of the tables to check.
        seconds: Timeout.
    """
    rows = client.execute(
        "SELECT table_name, index_name, MAX(nullable) FROM information_schema.statistics "
        "WHERE table_schema = database() AND non_unique = 0 GROUP BY table_name, index_name",
        target,
        seconds,
    ).texts()
    keyed = {table for table, _, nullable in rows if nullable != "YES"}
    return [table for table in tables if table not in keyed]
