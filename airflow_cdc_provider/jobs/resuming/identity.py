"""The identity of a changes table's connector: a second connector must not use the same table.

The table's name is derived from the connector's, so two declarations with the same name and namespace of the
lake would resume from each other's offsets and mix their changes. Therefore the table stores the identity of
its connector with the first offset: the name, the topic prefix, and the location of the source. A job of
another connector is refused before it commits anything.

Options that define *what* is captured and how (tables, filters, stages, hosts behind the Airflow connection)
are not part of it and may change at any time. A table without an identity takes that of its next job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.progress import Progress

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

_WHERE: Final = ("conn_id", "scope", "target", "keyspace")
"""Options of sources that locate the changes."""
_FOLDER: Final = "cdc_raw"
"""The option that locates a source without a connection."""


def identity_of(connector: Connector) -> dict[str, str]:
    """Return the identity of a connector, by option names."""
    source: Any = connector.source
    location = {f"source.{name}": str(getattr(source, name, "")) for name in _WHERE}
    if not location["source.conn_id"]:
        location[f"source.{_FOLDER}"] = str(getattr(source, _FOLDER, ""))
    own = {
        "name": connector.name,
        "publish.topic_prefix": connector.topic_prefix,
        "source.type": connector.type,
    }
    return own | {name: value for name, value in location.items() if value}


def require_own(connector: Connector, progress: Progress) -> None:
    """Refuse a changes table of another connector.

    Args:
        connector: The connector of the job.
        progress: The progress stored in the table.

    Raises:
        ConfigurationError: The table is another connector's; the message has the differences and remedies.
    """
    kept, own = progress.identity, identity_of(connector)
    if kept is None or kept == own:
        return
    differing = [name for name in {**kept, **own} if kept.get(name) != own.get(name)]
    raise ConfigurationError(
        f"{connector.changes_table} holds the changes of another connector",
        expected=_described(kept, differing),
        found=_described(own, differing),
        remedy="set another name or lake.namespace: the connector starts over there. If it is the same "
        "connector, and its source is the same under another connection, scope or topic prefix, "
        "'airflow cdc offsets adopt' resumes from the stored offset",
    )


def claimed(connector: Connector, progress: Progress) -> Progress:
    """Return a connector's progress with its identity, which the next commit stores.

    Raises:
        ConfigurationError: The progress is another connector's.
    """
    require_own(connector, progress)
    return progress if progress.identity else replace(progress, identity=identity_of(connector))


def _described(identity: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {identity.get(name) or 'none'}" for name in names)
