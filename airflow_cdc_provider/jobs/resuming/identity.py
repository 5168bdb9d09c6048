"""Whose changes a changes table holds: a second connector must not take it for its own.

The table's name follows from the connector's, so two declarations of one name in one namespace of the lake
would go on from each other's offsets and mix their changes. With the first offset the table therefore keeps
who its connector is: the name, the topic prefix, and where the source is found. A job of another one is
refused before it commits anything.

What says *what* is captured and how (tables, filters, stages, hosts behind the Airflow connection) is no
part of it and may change at any time. A table from before identities were kept takes that of its next job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.progress import Progress

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.context import JobContext

_WHERE: Final = ("conn_id", "scope", "target", "keyspace")
"""Options of sources that say where changes come from."""
_FOLDER: Final = "cdc_raw"
"""Likewise, of a source without a connection."""


def identity_of(connector: Connector) -> dict[str, str]:
    """Tell who a connector is, by the names of its options."""
    source: Any = connector.source
    told = {f"source.{name}": str(getattr(source, name, "")) for name in _WHERE}
    if not told["source.conn_id"]:
        told[f"source.{_FOLDER}"] = str(getattr(source, _FOLDER, ""))
    own = {
        "name": connector.name,
        "publish.topic_prefix": connector.topic_prefix,
        "source.type": connector.type,
    }
    return own | {name: value for name, value in told.items() if value}


def require_own(connector: Connector, progress: Progress) -> None:
    """Refuse a changes table of another connector.

    Args:
        connector: Who asks.
        progress: What the table holds.

    Raises:
        ConfigurationError: It is another one's; the message says in what they differ, and both ways on.
    """
    kept, own = progress.identity, identity_of(connector)
    if kept is None or kept == own:
        return
    apart = [name for name in {**kept, **own} if kept.get(name) != own.get(name)]
    raise ConfigurationError(
        f"{connector.changes_table} holds the changes of another connector",
        expected=_told(kept, apart),
        found=_told(own, apart),
        remedy="Give this one a name of its own, or another lake.namespace: it begins anew there. If it is "
        "the same one, and its source is the same under another connection, scope or topic prefix, "
        "'airflow cdc offsets adopt' goes on from what is there",
    )


def claimed(context: JobContext, progress: Progress) -> Progress:
    """Return a connector's progress with who it is, which the next commit keeps.

    Raises:
        ConfigurationError: The progress is another connector's.
    """
    require_own(context.connector, progress)
    return progress if progress.identity else progress.with_identity(identity_of(context.connector))


def _told(identity: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {identity.get(name) or 'none'}" for name in names)
