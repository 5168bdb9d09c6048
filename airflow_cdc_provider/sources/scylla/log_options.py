"""The option ``cdc`` of tables, which ScyllaDB reports in ``system_schema.scylla_tables``.

Log tables that are stored elsewhere, such as an emulation on Cassandra, may come without ``scylla_tables``. A
log that isn't listed there counts as enabled while its table exists. Its rows expire after the log table's
``default_time_to_live``, or never without one: assuming a shorter lifetime would skip existing rows. Whether
they contain values or keys only is determined row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from airflow_cdc_provider.sources.cql.connection import driver_errors
from airflow_cdc_provider.sources.scylla.payload import LOG_SUFFIX
from airflow_cdc_provider.sources.scylla.server_tables import rows_or_none

if TYPE_CHECKING:
    from cassandra.cluster import Session

UNREPORTED: Final = "unreported"
"""Value of ``delta`` if it is unknown whether a log contains keys only."""

_DEFAULT_TTL_SECONDS: Final = 86400


@dataclass(frozen=True)
class CdcOption:
    """A table's option ``cdc``.

    Args:
        enabled: Whether writes are logged.
        ttl_seconds: Lifetime of log rows, 0 for unlimited.
        delta: ``full`` or ``keys``; :data:`UNREPORTED` for a log whose option isn't reported.
        images: Which of ``preimage`` and ``postimage`` are logged.
    """

    enabled: bool
    ttl_seconds: int = _DEFAULT_TTL_SECONDS
    delta: str = "full"
    images: frozenset[str] = frozenset()

    @classmethod
    def read(cls, stored: Mapping[str, str] | None) -> Self:
        """Read the column ``cdc`` of ``scylla_tables``; null means that the table never had a log."""
        if not stored:
            return cls(enabled=False)
        return cls(
            stored.get("enabled", "false").lower() == "true",
            int(stored.get("ttl") or _DEFAULT_TTL_SECONDS),
            stored.get("delta", "full"),
            frozenset(i for i in ("preimage", "postimage") if stored.get(i, "false").lower() != "false"),
        )

    @classmethod
    def unreported(cls, ttl_seconds: int = 0) -> Self:
        """Return the option of a log that isn't listed in ``scylla_tables``."""
        return cls(True, ttl_seconds, UNREPORTED)

    @property
    def reported(self) -> bool:
        """Whether the server reports the option."""
        return self.delta != UNREPORTED


def read_log_options(session: Session, schema_keyspace: str = "system_schema") -> dict[str, CdcOption]:
    """Read the options of all tables that are listed or that have a log, by ``keyspace.table``.

    Args:
        session: To the cluster.
        schema_keyspace: Keyspace of the table ``scylla_tables``.

    Raises:
        ConfigurationError: The login has no permission to read the tables.
        TransientError: No node answers.
    """
    doing = "reading which tables have a log"
    with driver_errors(doing):
        tables = session.execute(
            "SELECT keyspace_name, table_name, default_time_to_live FROM system_schema.tables"
        )
        ttls = {f"{r.keyspace_name}.{r.table_name}": int(r.default_time_to_live or 0) for r in tables}
    found = {
        base: CdcOption.unreported(ttls[base + LOG_SUFFIX]) for base in ttls if base + LOG_SUFFIX in ttls
    }
    query = f"SELECT keyspace_name, table_name, cdc FROM {schema_keyspace}.scylla_tables"
    listed = rows_or_none(session, query, doing=doing) or ()
    return found | {f"{r.keyspace_name}.{r.table_name}": CdcOption.read(r.cdc) for r in listed}
