"""How tables are logged: the option ``cdc`` of each, which ScyllaDB tells in ``system_schema.scylla_tables``.

Log tables that are kept elsewhere, by an imitation on Cassandra for example, may come without
``scylla_tables``. A log that it doesn't tell of counts as on while its table is there. Its rows live as long
as the log table's ``default_time_to_live`` says, and for ever without one: a life that is taken for shorter
than it is would pass over rows that are there. Whether they tell values or keys alone is seen row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from airflow_cdc_provider.sources.cql.driver.connect import driver_errors
from airflow_cdc_provider.sources.scylla.payload import LOG_SUFFIX
from airflow_cdc_provider.sources.scylla.server_tables import rows_if_there

if TYPE_CHECKING:
    from cassandra.cluster import Session

UNTOLD: Final = "untold"
"""Where nothing tells whether a log is of keys alone."""

_DEFAULT_TTL_SECONDS: Final = 86400


@dataclass(frozen=True)
class CdcOption:
    """A table's option ``cdc``.

    Args:
        enabled: Whether writes are logged.
        ttl_seconds: How long log rows live, 0 for ever.
        delta: ``full`` or ``keys``; :data:`UNTOLD` for a log whose option nothing tells.
        images: Which of ``preimage`` and ``postimage`` are logged.
    """

    enabled: bool
    ttl_seconds: int = _DEFAULT_TTL_SECONDS
    delta: str = "full"
    images: frozenset[str] = frozenset()

    @classmethod
    def read(cls, told: Mapping[str, str] | None) -> Self:
        """Read the column ``cdc`` of ``scylla_tables``; null is a table that never had a log."""
        if not told:
            return cls(enabled=False)
        return cls(
            told.get("enabled", "false").lower() == "true",
            int(told.get("ttl") or _DEFAULT_TTL_SECONDS),
            told.get("delta", "full"),
            frozenset(i for i in ("preimage", "postimage") if told.get(i, "false").lower() != "false"),
        )

    @classmethod
    def untold(cls, ttl_seconds: int = 0) -> Self:
        """Return the option of a log of which nothing is known but its table."""
        return cls(True, ttl_seconds, UNTOLD)

    @property
    def told(self) -> bool:
        """Whether the server tells it."""
        return self.delta != UNTOLD


def read_log_options(session: Session, schema_keyspace: str = "system_schema") -> dict[str, CdcOption]:
    """Read the options of all tables that are told of, or that have a log, by ``keyspace.table``.

    Args:
        session: To the cluster.
        schema_keyspace: Keyspace of the table ``scylla_tables``.

    Raises:
        ConfigurationError: The login may not read it.
        TransientError: No node answers.
    """
    doing = "reading which tables have a log"
    with driver_errors(doing):
        tables = session.execute(
            "SELECT keyspace_name, table_name, default_time_to_live FROM system_schema.tables"
        )
        lives = {f"{r.keyspace_name}.{r.table_name}": int(r.default_time_to_live or 0) for r in tables}
    found = {base: CdcOption.untold(lives[base + LOG_SUFFIX]) for base in lives if base + LOG_SUFFIX in lives}
    query = f"SELECT keyspace_name, table_name, cdc FROM {schema_keyspace}.scylla_tables"
    told = rows_if_there(session, query, doing=doing) or ()
    return found | {f"{r.keyspace_name}.{r.table_name}": CdcOption.read(r.cdc) for r in told}
