"""Definition of the ``airflow cdc`` commands. Imports little, because Airflow loads it at each start.

Exit codes of all commands: 0 success, 1 failure with one message on stderr, 2 invalid arguments.
"""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command


def _argument(flag: str, help_text: str, metavar: str = "", **settings: Any) -> Arg:
    """Define an option; without settings, one with a value is empty text if it is omitted."""
    if metavar:
        settings["metavar"] = metavar
        if "required" not in settings:
            settings.setdefault("default", "")
    return Arg((flag,), help=help_text, **settings)  # type: ignore[no-untyped-call]  # Airflow's class has no types


_CONNECTOR = _argument(
    "--connector", "Connector declaration (YAML) or Debezium .properties file", "FILE", required=True
)
_RECORDING = (
    "Recording. Cassandra: folder of commit log segments and idx files (plain or .gz). "
    "MongoDB: file or folder of change events in BSON; snapshot.DB.COLL.bson contains snapshot documents"
)
_INPUT = _argument("--input", _RECORDING, "PATH", required=True)
_EVENTS_INPUT = _argument("--input", _RECORDING, "PATH")
_FROM_LAKE = _argument(
    "--from-lake",
    "Read captured changes and snapshot rows from the lake instead of a recording",
    action="store_true",
)
_AFTER_BATCH = _argument(
    "--after-batch", "With --from-lake: only batches after batch N", "N", type=int, default=0
)
_SCHEMA = _argument(
    "--schema", "Cassandra: file with the schema, as printed by DESCRIBE ... WITH INTERNALS", "PATH"
)
_AT = _argument(
    "--at",
    "Time for the evaluation of TTLs and for event timestamps; default: now",
    "EPOCH_SECONDS",
    type=int,
    default=None,
)
_TABLE = _argument("--table", "Only this keyspace.table or database.collection", "NAME")
_EVENTS_TABLE = _argument(
    "--table", "With --from-lake: only this keyspace.table or database.collection", "NAME"
)

_OFFSET = _argument("--offset", "Source offset, in the form that show prints", "JSON", required=True)
_BATCH = _argument(
    "--batch",
    "First batch that the next run publishes; next: the batch of the next capture",
    "N",
    type=lambda text: text if text == "next" else int(text),
    required=True,
)
_FILE = _argument("--file", "File for the offset, JSON", "FILE", required=True)
_IMPORTED = _argument(
    "--file",
    "File with the offset as JSON. Also accepted: offsets of a Kafka Connect connector (MongoDB, "
    "Vitess, ScyllaDB), commitlog_offset.properties of Debezium (Cassandra)",
    "FILE",
    required=True,
)
_TO = _argument(
    "--to",
    "Format. debezium (Vitess, ScyllaDB): the body of Kafka Connect's PATCH /connectors/NAME/offsets",
    choices=("file", "debezium"),
    default="file",
)
_MOVED_FROM = _argument(
    "--moved-from",
    "Vitess: export these offsets of Debezium tasks, converted to the current generation, instead",
    "FILE",
)
_INVALIDATION = _argument(
    "--allow-offset-invalidation",
    "MongoDB: discard Debezium's offsets per shard and resume from the time of the oldest",
    action="store_true",
)
_HOST_ID = _argument("--host-id", "Cassandra: host ID of the node that the offsets belong to", "ID")
_PROPERTIES = _argument(
    "--connector",
    "Configuration of the Debezium connector: .properties or Kafka Connect JSON",
    "FILE",
    required=True,
)
_OFFSETS = _argument(
    "--offsets",
    "Offsets stored by the connector, in a format that offsets import accepts; Cassandra: "
    "commitlog_offset.properties of one node",
    "FILE",
)
_OUTPUT = _argument("--output", "Path of the connector declaration (YAML) to write", "FILE")
_CONN_ID = _argument("--conn-id", "Airflow connection ID of the source", "ID")
_KAFKA_CONN_ID = _argument("--kafka-conn-id", "Airflow connection ID of Kafka", "ID")
_REGISTRY_CONN_ID = _argument("--registry-conn-id", "Airflow connection ID of the schema registry", "ID")
_LAKE = _argument("--lake", "Also write, read and drop a table of the lake, with Spark", action="store_true")
_SKIP_UNSUPPORTED = _argument(
    "--skip-unsupported", "Write the declaration without unsupported properties", action="store_true"
)
_WORK_FOLDER = _argument("--work-folder", "Work folder of the operator; default: [cdc] work_folder", "PATH")
_ORIGIN = _argument("--origin", "Host ID of the node, as printed by show", "ID", required=True)
_SIGNAL = _argument(
    "--signal",
    "execute-snapshot, stop-snapshot, pause-snapshot, resume-snapshot or log",
    "TYPE",
    required=True,
)
_DATA = _argument("--data", "Data of the signal", "JSON", default="{}")
_TABLES = _argument("--tables", "Comma-separated data-collections; replaces those in --data", "NAMES")
_ID = _argument("--id", "ID of the signal; default: a random ID", "ID")
_RESET_TABLE = _argument("--table", "Reset only the completed snapshot of this table", "NAME")
_SCHEMA_TABLE = _argument("--table", "Only this database.collection (or view)", "NAME")
_SAMPLE = _argument("--sample", "Maximum number of documents per collection", "N", type=int, default=1000)
_SECONDS = _argument("--seconds", "Maximum time per collection, in seconds", "S", type=float, default=10.0)
_DEPTH = _argument(
    "--depth", "Levels of nested documents to include; 1: top-level fields only", "N", type=int, default=1
)


def _offline(name: str, help_text: str, *args: Arg) -> ActionCommand:
    function = lazy_load_command(f"airflow_cdc_provider.cli.offline_commands.{name}")
    return ActionCommand(name=name, help=help_text, func=function, args=(_CONNECTOR, *args))


def _live(name: str, help_text: str, function: str, *args: Arg) -> ActionCommand:
    called = lazy_load_command(f"airflow_cdc_provider.cli.live_commands.{function}")
    return ActionCommand(name=name, help=help_text, func=called, args=(_CONNECTOR, *args))


def get_cdc_cli_commands() -> list[GroupCommand]:
    """Return the command group; ``get_provider_info`` refers to it under ``cli``."""
    events = "Print the events of a recording or of captured changes, one JSON object per line"
    recorded = (_EVENTS_INPUT, _FROM_LAKE, _AFTER_BATCH, _SCHEMA, _AT, _EVENTS_TABLE)
    rows = "Print the final rows of a recording, one JSON object per line"
    commands = (
        _offline("events", events, *recorded),
        _offline("rows", rows, _INPUT, _SCHEMA, _AT, _TABLE),
        GroupCommand("migrate", "Migrate from Debezium", _migrate_commands()),
        *_connector_commands(),
        GroupCommand("offsets", "Show and change the offset of a connector", _offset_commands()),
    )
    purpose = "Manage connectors and their offsets; print events and rows of recordings"
    return [GroupCommand("cdc", "Change data capture", commands, purpose)]


def _migrate_commands() -> tuple[ActionCommand, ...]:
    declared = (_CONN_ID, _KAFKA_CONN_ID, _REGISTRY_CONN_ID, _OUTPUT, _SKIP_UNSUPPORTED)
    plan = ActionCommand(
        name="plan",
        help="Report how a Debezium connector's settings translate; write a declaration",
        func=lazy_load_command("airflow_cdc_provider.cli.migrate.plan"),
        args=(_PROPERTIES, _OFFSETS, _HOST_ID, *declared, _INVALIDATION),
    )
    return (plan,)


def _connector_commands() -> tuple[ActionCommand, ...]:
    schema = "Infer columns from a sample of each collection and print them as source.columns"
    status = "Print the status of each table and of signals, one JSON object per line"
    signal = "Send a signal to a connector and print its ID"
    metrics = "Print the metrics of the continuous application under Debezium's names"
    return (
        _live("check", "Verify the prerequisites of the source, with --lake also the lake", "check", _LAKE),
        _live("schema", schema, "schema", _SCHEMA_TABLE, _SAMPLE, _SECONDS, _DEPTH),
        _live("create-topics", "Create missing topics as configured in publish.topics", "create_topics"),
        _live("lag", "Print the lag of the stored offset", "lag"),
        _live("status", status, "status"),
        _live("signal", signal, "signal", _SIGNAL, _DATA, _TABLES, _ID, _WORK_FOLDER),
        _live("metrics", metrics, "metrics", _WORK_FOLDER),
    )


def _offset_commands() -> tuple[ActionCommand, ...]:
    reset = "Delete the stored offset; the next run starts over"
    adopt = "Take over an offset stored under another connection, scope or topic prefix"
    publish = "Set the batch from which the next run publishes"
    return (
        _live("show", "Print the stored offset", "show_offset"),
        _live("set", "Store an offset", "set_offset", _OFFSET),
        _live("reset", reset, "reset_offset", _RESET_TABLE),
        _live("remove-origin", "Remove a decommissioned node from the offset", "remove_origin", _ORIGIN),
        _live("adopt", adopt, "adopt_offset"),
        _live("publish-from", publish, "publish_from", _BATCH),
        _live("export", "Write the stored offset to a file", "export_offset", _FILE, _TO, _MOVED_FROM),
        _live("import", "Store the offset from a file", "import_offset", _IMPORTED, _INVALIDATION, _HOST_ID),
    )
