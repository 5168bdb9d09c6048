"""Options of publishing to Pulsar in the format of DataStax's source connector.

Broker and token are in the Airflow connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.options import option


def _namespace(value: str) -> str:
    part = r"[A-Za-z0-9_=:.-]+"
    return "" if re.fullmatch(f"{part}/{part}", value) else "tenant/namespace"


def _prefix(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{0,200}", value) else "letters, digits, . _ and -"


@dataclass(frozen=True)
class PulsarOptions:
    """Options of publishing to Pulsar."""

    connection: str = option(
        "Airflow connection of type generic; its extra has service_url and TLS files, its password is the "
        "token. Empty: publishing to Pulsar is disabled",
        "",
    )
    namespace: str = option("Tenant and namespace of the topics", "public/default", check=_namespace)
    topic_prefix: str = option("Prefix of topic names, before <keyspace>.<table>", "data-", check=_prefix)
    delivery: Literal["exactly_once", "at_least_once"] = option(
        "exactly_once: broker deduplication drops records that a killed run had sent, and runs fail if it is "
        "disabled; at_least_once: such records are duplicated if deduplication is disabled",
        "exactly_once",
    )
    start: Literal["earliest", "latest"] = option(
        "Start of the first run. earliest: all batches of the changes table; latest: only later batches",
        "earliest",
    )
    on_record_error: Literal["dead_letters", "fail"] = option(
        "Handling of records that can't be built, or that brokers or the registry refuse permanently. "
        "dead_letters: write them to the table <connector>_dead_letters, report them and continue; fail: "
        "fail the run with the record's topic and key",
        "dead_letters",
    )
    records_per_commit: int = option(
        "Number of records after which the position is stored", 50_000, minimum=1
    )
    retry_interval_seconds: float = option(
        "Interval between attempts to connect to brokers", 1.0, minimum=0.01
    )
    retry_timeout_seconds: float = option(
        "How long a run retries unavailable brokers before it fails; no data is lost",
        300.0,
        minimum=0,
    )

    @property
    def enabled(self) -> bool:
        """Whether events are published."""
        return bool(self.connection)
