"""List the tables of a cluster that have ``cdc = true``, and switch the flag of tables that match patterns.

Switching is idempotent: it alters only tables whose flag differs, in sequence, and waits for schema agreement
before each, because concurrent ALTERs can be lost. It reads the flag back afterwards, because a node with
``cdc_enabled: false`` accepts the ALTER and silently leaves the flag out of the schema.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.patterns import compiled, fullmatches, matches
from airflow_cdc_provider.sources.cql.connection import driver_errors
from airflow_cdc_provider.sources.cql.system_schema import SYSTEM_KEYSPACES
from airflow_cdc_provider.sources.cql.types import quote_name

if TYPE_CHECKING:
    from cassandra.cluster import Session

AGREEMENT_SECONDS: Final = 30.0
"""Timeout of schema agreement."""

_ALTER_SECONDS: Final = 30.0


@dataclass(frozen=True)
class FlagChange:
    """The result of switching the flag.

    Args:
        changed: Tables that were altered, sorted.
        unchanged: Tables that already had the requested flag, sorted.
    """

    changed: tuple[str, ...]
    unchanged: tuple[str, ...]


def captured_tables(session: Session) -> list[str]:
    """List the tables that have ``cdc = true``, as ``keyspace.table``, sorted."""
    return sorted(name for name, cdc in _flags(session).items() if cdc)


def matching_tables(session: Session, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
    """List the tables that match patterns, sorted.

    Args:
        session: A session with the cluster.
        patterns: Regular expressions on ``keyspace.table``, anchored, as in a declaration. They never match
            views and system tables.
        exclude: Patterns of tables to leave out.

    Raises:
        ConfigurationError: A pattern matches no table; the message says whether it matches a view, a system
            table, or nothing.
    """
    flags = _flags(session)
    ordinary = [name for name in flags if not _is_system(name)]
    found: set[str] = set()
    for pattern in patterns:
        try:
            expression = compiled(pattern)
        except re.error as error:
            raise ConfigurationError(
                f"{pattern!r} is not a valid regular expression", found=str(error)
            ) from error
        names = [name for name in ordinary if fullmatches(expression, name)]
        if not names:
            raise _no_table(session, expression, flags)
        found.update(names)
    return sorted(name for name in found if not any(matches(one, name) for one in exclude))


def switch_cdc(session: Session, tables: Sequence[str], *, enabled: bool) -> FlagChange:
    """Switch ``cdc`` on or off for the tables whose flag differs.

    Args:
        session: A session with the cluster.
        tables: Names from :func:`matching_tables`.
        enabled: The flag to set.

    Returns:
        Which tables were altered. All nodes that are up have the new schema by then.

    Raises:
        ConfigurationError: The role lacks ALTER on a table, the cluster rejects the ALTER, or the contacted
            node has ``cdc_enabled: false``. Tables altered before stay altered.
        TransientError: Nodes don't agree on the schema, or don't respond. Calling it again resumes.
    """
    _await_agreement(session)
    flags = _flags(session)
    changed = [table for table in sorted(set(tables)) if flags.get(table) is not enabled]
    for table in changed:
        _alter(session, table, enabled=enabled)
        _await_agreement(session)
    flags = _flags(session) if changed else flags
    if rejected := [table for table in changed if flags.get(table) is not enabled]:
        raise ConfigurationError(
            f"cdc of {', '.join(rejected)} is still {'off' if enabled else 'on'} after ALTER TABLE",
            expected="cdc_enabled: true in cassandra.yaml of every node, and no concurrent ALTER TABLE",
            remedy="airflow cdc check lists the nodes that have cdc_enabled: false",
        )
    return FlagChange(tuple(changed), tuple(sorted(set(tables) - set(changed))))


def _alter(session: Session, table: str, *, enabled: bool) -> None:
    from cassandra import Unauthorized

    cql_name = ".".join(map(quote_name, table.split(".", 1)))
    with driver_errors(f"altering {table}"):
        try:
            session.execute(
                f"ALTER TABLE {cql_name} WITH cdc = {'true' if enabled else 'false'}", timeout=_ALTER_SECONDS
            )
        except Unauthorized:
            raise ConfigurationError(
                f"altering {table} is not permitted", remedy=f"GRANT ALTER ON {cql_name} TO the role"
            ) from None


def _await_agreement(session: Session) -> None:
    control = session.cluster.control_connection
    with driver_errors("waiting for nodes to agree on the schema"):
        agreed = control.wait_for_schema_agreement(wait_time=AGREEMENT_SECONDS)
    if not agreed:
        raise TransientError(
            f"nodes still don't agree on the schema after {AGREEMENT_SECONDS:.0f} s",
            expected="one schema version",
            remedy="retry when nodetool describecluster reports a single schema version",
        )


def _flags(session: Session) -> dict[str, bool]:
    with driver_errors("reading the schema"):
        rows = session.execute("SELECT keyspace_name, table_name, cdc FROM system_schema.tables")
        return {f"{row.keyspace_name}.{row.table_name}": bool(row.cdc) for row in rows}


def _is_system(table: str) -> bool:
    return table.partition(".")[0] in SYSTEM_KEYSPACES


def _no_table(session: Session, pattern: re.Pattern[str], flags: dict[str, bool]) -> ConfigurationError:
    with driver_errors("reading the schema"):
        rows = session.execute("SELECT keyspace_name, view_name, base_table_name FROM system_schema.views")
        views = {f"{r.keyspace_name}.{r.view_name}": f"{r.keyspace_name}.{r.base_table_name}" for r in rows}
    for view, base in sorted(views.items()):
        if pattern.fullmatch(view):
            return ConfigurationError(
                f"{view} is a materialized view: its cdc can't be switched",
                remedy=f"capture its base table, {base}; or to capture the view itself, ALTER "
                f"MATERIALIZED VIEW {view} WITH cdc = true and name it in the declaration",
            )
    ordinary = [table for table in flags if not _is_system(table)]
    if any(pattern.fullmatch(table) for table in flags) or _is_system(pattern.pattern.replace("\\", "")):
        return ConfigurationError(
            f"{pattern.pattern} matches system tables, whose cdc can't be switched",
            expected="tables of user keyspaces",
        )
    near = difflib.get_close_matches(pattern.pattern.replace("\\", ""), ordinary, n=1)
    return ConfigurationError(
        f"no table matches {pattern.pattern}",
        expected="a regular expression on keyspace.table, anchored",
        found=f"{len(ordinary)} tables",
        remedy=f"Did you mean {near[0]}?" if near else "",
    )
