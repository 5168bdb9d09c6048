"""What tablets tell of themselves by statements: who serves, their binlogs, their tables' keys.

No MySQL account is needed for it: VTGate hands statements on to the tablet that a target names.
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
    """A tablet that VTGate knows.

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
    """What a tablet's MySQL says of its binlogs.

    Args:
        purged: The transactions whose binlogs are gone; None where the server tells none (MariaDB).
        expire_seconds: How long they are kept, 0 for always, None where it isn't told.
        row_image: ``FULL``, ``NOBLOB`` or ``MINIMAL``.
        partial_json: Whether updates of JSON may come in parts.
    """

    purged: GtidSet | None
    expire_seconds: int | None
    row_image: str
    partial_json: bool

    def has_after(self, gtid: str) -> bool:
        """Tell whether all transactions after a position are there still."""
        if self.purged is None or not gtid.startswith(_MYSQL):
            return True
        return GtidSet.parse(gtid).contains(self.purged)


def list_tablets(client: VtgateClient, keyspace: str, seconds: float) -> list[Tablet]:
    """List a keyspace's tablets.

    Args:
        client: The client.
        keyspace: The keyspace.
        seconds: When to give up.
    """
    rows = client.execute("SHOW VITESS_TABLETS", timeout_seconds=seconds).texts()
    return [tablet for row in rows if (tablet := Tablet(*row[:6])).keyspace == keyspace]


def shards_in_reshard(tablets: Sequence[Tablet]) -> list[str]:
    """List the shards that have tablets and share keys with others that do, sorted.

    VTGate lists only shards that serve; those that are being made, or about to go, have tablets nevertheless.
    """
    shards = sorted({f"{tablet.keyspace}/{tablet.shard}" for tablet in tablets})
    return [one for one in shards if any(overlap(one, other) for other in shards if other != one)]


def read_binlogs(client: VtgateClient, target: str, seconds: float) -> Binlogs:
    """Ask a tablet for its binlogs.

    Args:
        client: The client.
        target: ``keyspace:shard@type``.
        seconds: When to give up.
    """
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    rows = client.execute(
        f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})",
        target,
        seconds,
    ).texts()
    told = {name.lower(): value for name, value in rows}
    purged = told.get("gtid_purged")
    expire = told.get("binlog_expire_logs_seconds", "")
    return Binlogs(
        None if purged is None else GtidSet.parse(f"{_MYSQL}/{purged}"),
        int(expire) if expire.isdigit() else None,
        told.get("binlog_row_image", ""),
        "PARTIAL_JSON" in told.get("binlog_row_value_options", ""),
    )


def require_kept(
    client: VtgateClient, positions: Mapping[str, str], tablet_type: str, seconds: float
) -> None:
    """Refuse a position whose following binlogs are gone.

    VTGate itself doesn't tell: it looks for another tablet for 90 seconds, and then says that there is none.
    Of several tablets of a type each may have binlogs of its own; a shard counts as lost when none of as many
    looks as it has tablets finds them.

    Args:
        client: The client.
        positions: GTID set by ``keyspace/shard``.
        tablet_type: The type of the tablets that are read.
        seconds: When to give up each look.

    Raises:
        PositionLost: With the shard.
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
        looks = sum((t.shard, t.type) == (name, tablet_type) for t in tablets)
        if any(read_binlogs(client, target, seconds).has_after(gtid) for _ in range(2 * (looks - 1))):
            continue
        raise PositionLost(
            f"binlogs of {shard} after the stored offset were purged",
            expected=f"purged transactions to be among {gtid}",
            found=str(binlogs.purged),
            remedy="take a new snapshot; then capture more often, or raise binlog_expire_logs_seconds",
        )


def keyless_tables(client: VtgateClient, target: str, tables: Sequence[str], seconds: float) -> list[str]:
    """List which of some tables have neither a primary key nor a unique one without nullable columns.

    Args:
        client: The client.
        target: ``keyspace:shard@type``.
        tables: Their names.
        seconds: When to give up.
    """
    rows = client.execute(
        "SELECT table_name, index_name, MAX(nullable) FROM information_schema.statistics "
        "WHERE table_schema = database() AND non_unique = 0 GROUP BY table_name, index_name",
        target,
        seconds,
    ).texts()
    keyed = {table for table, _, nullable in rows if nullable != "YES"}
    return [table for table in tables if table not in keyed]
