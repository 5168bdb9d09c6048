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
_RECORDING = (
    "The recording. Cassandra: a folder of commit-log segments and idx files (plain or .gz). "
    "MongoDB: a file or folder of change events as BSON; snapshot.DB.COLL.bson holds snapshot documents"
)
_INPUT = _argument("--input", metavar="PATH", required=True, help=_RECORDING)
_EVENTS_INPUT = _argument("--input", metavar="PATH", default="", help=_RECORDING)
_FROM_LAKE = _argument(
    "--from-lake",
    action="store_true",
    help="Instead of a recording, the changes and snapshot rows that were captured to the lake",
)
_AFTER_BATCH = _argument(
    "--after-batch", metavar="N", type=int, default=0, help="With --from-lake: only batches after this one"
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
_EVENTS_TABLE = _argument(
    "--table",
    metavar="NAME",
    default="",
    help="With --from-lake: only this keyspace.table or database.collection",
)

_OFFSET = _argument("--offset", metavar="JSON", required=True, help="The source's offset, as show prints it")
_BATCH = _argument(
    "--batch",
    metavar="N",
    type=lambda text: text if text == "next" else int(text),
    required=True,
    help="The first batch that the next run publishes; next: the one that the next capture makes",
)
_FILE = _argument("--file", metavar="FILE", required=True, help="File that holds the offset as JSON")
_IMPORTED = _argument(
    "--file",
    metavar="FILE",
    required=True,
    help="File that holds the offset as JSON; for MongoDB, Vitess and ScyllaDB also offsets that the "
    "connector has stored in Kafka Connect, for Cassandra commitlog_offset.properties of Debezium",
)
_TO = _argument(
    "--to",
    choices=("file", "debezium"),
    default="file",
    help="The form: our own, or of Vitess and ScyllaDB what PATCH /connectors/NAME/offsets of Connect takes",
)
_MOVED_FROM = _argument(
    "--moved-from",
    metavar="FILE",
    default="",
    help="Vitess: instead of the stored offset, offsets of Debezium's tasks, moved to the present generation",
)
_INVALIDATION = _argument(
    "--allow-offset-invalidation",
    action="store_true",
    help="MongoDB: give up Debezium's offsets of single shards for the time of the oldest",
)
_HOST_ID = _argument(
    "--host-id", metavar="ID", default="", help="Cassandra: host id of the node that the offsets are of"
)
_PROPERTIES = _argument(
    "--connector", metavar="FILE", required=True, help="The .properties file of the Debezium connector"
)
_OFFSETS = _argument(
    "--offsets",
    metavar="FILE",
    default="",
    help="Offsets that the connector has stored, as offsets import takes them; Cassandra: its "
    "commitlog_offset.properties of one node",
)
_OUTPUT = _argument("--output", metavar="FILE", default="", help="Where to write the declaration, YAML")
_CONN_ID = _argument("--conn-id", metavar="ID", default="", help="Airflow connection of the source")
_KAFKA_CONN_ID = _argument("--kafka-conn-id", metavar="ID", default="", help="Airflow connection of Kafka")
_REGISTRY_CONN_ID = _argument(
    "--registry-conn-id", metavar="ID", default="", help="Airflow connection of the schema registry"
)
_WITHOUT_REFUSED = _argument(
    "--without-refused", action="store_true", help="Write the declaration without what can't be followed"
)
_WORK_FOLDER = _argument(
    "--work-folder",
    metavar="PATH",
    default="",
    help="The work folder of the operator that started it; default: [cdc] work_folder",
)
_ORIGIN = _argument("--origin", metavar="ID", required=True, help="The node's host id, as show prints it")
_SIGNAL = _argument(
    "--signal",
    metavar="TYPE",
    required=True,
    help="execute-snapshot, stop-snapshot, pause-snapshot, resume-snapshot or log",
)
_DATA = _argument("--data", metavar="JSON", default="{}", help="The signal's data")
_TABLES = _argument(
    "--tables", metavar="NAMES", default="", help="data-collections, with commas, in place of those in --data"
)
_ID = _argument("--id", metavar="ID", default="", help="The signal's id; default: one of its own")
_RESET_TABLE = _argument(
    "--table", metavar="NAME", default="", help="Forget only the finished snapshot of this table"
)
_SCHEMA_TABLE = _argument(
    "--table", metavar="NAME", default="", help="Only this database.collection; may be a view"
)
_SAMPLE = _argument(
    "--sample", metavar="N", type=int, default=1000, help="Documents per collection, at the most"
)
_SECONDS = _argument(
    "--seconds", metavar="S", type=float, default=10.0, help="Seconds per collection, at the most"
)
_DEPTH = _argument(
    "--depth", metavar="N", type=int, default=1, help="2: also fields of documents in documents; and so on"
)


def _offline(name: str) -> Callable[..., Any]:
    return lazy_load_command(f"airflow_cdc_provider.cli.offline_commands.{name}")


def _live(name: str, help_text: str, function: str, *args: Arg) -> ActionCommand:
    function = f"airflow_cdc_provider.cli.live_commands.{function}"
    return ActionCommand(
        name=name, help=help_text, func=lazy_load_command(function), args=(_CONNECTOR, *args)
    )


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
                    help="Print the events of a recording or of what was captured, one JSON object a line",
                    func=_offline("events"),
                    args=(_CONNECTOR, _EVENTS_INPUT, _FROM_LAKE, _AFTER_BATCH, _SCHEMA, _AT, _EVENTS_TABLE),
                ),
                ActionCommand(
                    name="rows",
                    help="Print the rows that a recording adds up to, one JSON object a line",
                    func=_offline("rows"),
                    args=(_CONNECTOR, _INPUT, _SCHEMA, _AT, _TABLE),
                ),
                ActionCommand(
                    name="plan-move",
                    help="Tell what becomes of a Debezium connector, and write its declaration",
                    func=lazy_load_command("airflow_cdc_provider.cli.moving.plan_move"),
                    args=(
                        _PROPERTIES,
                        _OFFSETS,
                        _HOST_ID,
                        _CONN_ID,
                        _KAFKA_CONN_ID,
                        _REGISTRY_CONN_ID,
                        _OUTPUT,
                        _WITHOUT_REFUSED,
                        _INVALIDATION,
                    ),
                ),
                _live("check", "Look at everything that capture needs of the source", "check"),
                _live(
                    "schema",
                    "Print the columns that a sample of each collection has, as a declaration has them",
                    "schema",
                    _SCHEMA_TABLE,
                    _SAMPLE,
                    _SECONDS,
                    _DEPTH,
                ),
                _live(
                    "create-topics",
                    "Make the topics of the connector's tables that are missing, as publish.topics says",
                    "create_topics",
                ),
                _live("lag", "Print how far the stored offset is behind the source", "lag"),
                _live(
                    "status",
                    "Print where each table stands and what signals asked for, one JSON object a line",
                    "status",
                ),
                _live(
                    "signal",
                    "Tell a connector, running or not, what to do; print the signal's id",
                    "signal",
                    _SIGNAL,
                    _DATA,
                    _TABLES,
                    _ID,
                    _WORK_FOLDER,
                ),
                _live(
                    "metrics",
                    "Print the metrics of the continuous application by Debezium's names",
                    "metrics",
                    _WORK_FOLDER,
                ),
                GroupCommand(
                    name="offsets",
                    help="Look at and change where a connector resumes",
                    subcommands=(
                        _live("show", "Print the stored offset", "show_offset"),
                        _live("set", "Store an offset", "set_offset", _OFFSET),
                        _live(
                            "reset",
                            "Forget the position: capture begins as at first",
                            "reset_offset",
                            _RESET_TABLE,
                        ),
                        _live(
                            "forget",
                            "Take a node that is gone for good out of the offset",
                            "forget_origin",
                            _ORIGIN,
                        ),
                        _live(
                            "adopt",
                            "Go on with what is stored under another connection, scope or topic prefix",
                            "adopt_offset",
                        ),
                        _live(
                            "publish",
                            "Let publishing go on with a batch of the changes table, whatever was published",
                            "publish_from",
                            _BATCH,
                        ),
                        _live(
                            "export",
                            "Write the stored offset to a file",
                            "export_offset",
                            _FILE,
                            _TO,
                            _MOVED_FROM,
                        ),
                        _live(
                            "import",
                            "Store the offset of a file",
                            "import_offset",
                            _IMPORTED,
                            _INVALIDATION,
                            _HOST_ID,
                        ),
                    ),
                ),
            ),
        )
    ]
