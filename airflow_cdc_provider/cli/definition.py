"""What ``airflow`` needs to know of ``airflow cdc``: names and arguments. Light: read at every start of it.

Exit codes of all commands: 0 done, 1 one message on stderr says why not, 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command


def _argument(flag: str, **settings: Any) -> Arg:
    return Arg((flag,), **settings)  # type: ignore[no-untyped-call]  # Airflow's class has no types


_CONNECTOR = _argument(
    "--connector",
    metavar="FILE",
    required=True,
    help="The connector's YAML, or a Debezium .properties file",
)
_INPUT = _argument(
    "--input",
    metavar="PATH",
    required=True,
    help=(
        "The recording. Cassandra: a folder of commit-log segments and idx files (plain or .gz). "
        "MongoDB: a file or folder of change events as BSON; snapshot.DB.COLL.bson holds snapshot documents"
    ),
)
_SCHEMA = _argument(
    "--schema",
    metavar="PATH",
    default="",
    help="Cassandra: the schema as DESCRIBE ... WITH INTERNALS prints it",
)
_AT = _argument(
    "--at",
    metavar="EPOCH_SECONDS",
    type=int,
    help="The moment at which TTLs are judged and events are built; default: now",
)
_TABLE = _argument(
    "--table", metavar="NAME", default="", help="Only this keyspace.table or database.collection"
)


def _offline(name: str) -> Callable[..., Any]:
    return lazy_load_command(f"airflow_cdc_provider.cli.offline_commands.{name}")


def get_cdc_cli_commands() -> list[GroupCommand]:
    """Return the group, as ``get_provider_info`` names it under ``cli``."""
    return [
        GroupCommand(
            name="cdc",
            help="Change data capture",
            description="Look at recordings without a server, and at connectors and their offsets",
            subcommands=(
                ActionCommand(
                    name="events",
                    help="Print a recording's events, one JSON object a line",
                    func=_offline("events"),
                    args=(_CONNECTOR, _INPUT, _SCHEMA, _AT),
                ),
                ActionCommand(
                    name="rows",
                    help="Print the rows that a recording adds up to, one JSON object a line",
                    func=_offline("rows"),
                    args=(_CONNECTOR, _INPUT, _SCHEMA, _AT, _TABLE),
                ),
            ),
        )
    ]
