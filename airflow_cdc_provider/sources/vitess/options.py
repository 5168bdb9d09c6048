"""Options of a Vitess source. Import-light, since DAG files read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_cdc_provider.connector.publish.vitess import validate_vitess_options
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.options import option
from airflow_cdc_provider.patterns import compiled, wrong_patterns
from airflow_cdc_provider.sources.backoff import NO_LIMIT
from airflow_cdc_provider.sources.plugin import SourceOptions
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, GtidSet, is_real

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

_SHARD: Final = re.compile(r"0|[A-Za-z0-9_]+|(?:[0-9a-f]{2})*-(?:[0-9a-f]{2})*")


def _shards(values: tuple[str, ...]) -> str:
    wrong = [value for value in values if not _SHARD.fullmatch(value)]
    if wrong:
        return f"names of shards, such as -80, 80- or 0 (not {wrong[0]!r})"
    return "" if len(set(values)) == len(values) else "each shard once"


def _keyspace(value: str) -> str:
    if value.startswith("/"):
        own = value.strip("/")
        return wrong_patterns([own], "keyspaces") if own else "a regular expression after the slash"
    return "" if re.fullmatch(r"[^\s/:@.`]+", value) else "a keyspace, or a regular expression after a slash"


def has_keyspace(chosen: str, keyspace: str) -> bool:
    """Return whether option ``keyspace`` selects a keyspace, by name or as VTGate matches expressions."""
    if chosen.startswith("/"):
        return compiled(chosen.strip("/")).search(keyspace) is not None
    return chosen == keyspace


def _tablet_type(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    upper = value.upper()
    return {"MASTER": "PRIMARY", "BATCH": "RDONLY"}.get(upper, upper)


def _start_at(value: Any) -> Any:
    if isinstance(value, str) and value.lower() == CURRENT:
        return CURRENT
    return json.dumps(value) if isinstance(value, list) else value


def _vgtid(value: str) -> str:
    if value == CURRENT:
        return ""
    expected = 'current, or [{"keyspace": ..., "shard": ..., "gtid": ...}, ...] as JSON, each shard once'
    try:
        entries = json.loads(value)
    except ValueError:
        return expected
    if not isinstance(entries, list) or not entries:
        return expected
    shards = []
    for entry in entries:
        if not isinstance(entry, dict) or not {"keyspace", "shard", "gtid"} <= set(entry):
            return expected
        if not all(isinstance(entry[name], str) and entry[name] for name in ("keyspace", "shard", "gtid")):
            return f"{expected}; take a snapshot to copy existing rows"
        if is_real(entry["gtid"]) and not _is_gtid_set(entry["gtid"]):
            return "current, MySQL56/... or MariaDB/... as each gtid"
        shards.append((entry["keyspace"], entry["shard"]))
    return "" if len(set(shards)) == len(shards) else expected


def _is_gtid_set(text: str) -> bool:
    try:
        GtidSet.parse(text)
    except CorruptInput:
        return False
    return True


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _epochs(values: Mapping[str, int]) -> str:
    fit = all(_SHARD.fullmatch(shard) and 0 <= epoch < 1 << 31 for shard, epoch in values.items())
    return "" if fit else "a whole number per shard, such as {'-80': 2, '80-': 1}"


@dataclass(frozen=True)
class VitessTaskOffsets:
    """How Debezium's tasks store their offsets.

    Only used by ``airflow cdc offsets import`` and ``export``. A capture ignores it, because its offset has
    an entry per shard. The number of tasks is ``source.streams``.
    """

    per_task: bool = option(
        "Each Debezium task stores an offset of its shards, with the key taskI_N_G "
        "(vitess.offset.storage.per.task)",
        False,
    )
    generation: int = option(
        "G, which increases with each change of the number of tasks (vitess.offset.storage.task.key.gen); an "
        "offset without a key belongs to generation 0",
        -1,
        minimum=-1,
    )
    previous_tasks: int = option(
        "Actual number of tasks in the previous generation (vitess.prev.num.tasks)", -1, minimum=-1
    )

    def __post_init__(self) -> None:
        """Reject tasks without a generation, and a generation without the previous number of tasks.

        Raises:
            ConfigurationError: One of them is missing.
        """
        if self.per_task and self.generation < 0:
            raise ConfigurationError(
                "offsets per task need a generation",
                expected="source.task_offsets.generation (vitess.offset.storage.task.key.gen) of 0 or more",
                found=str(self.generation),
            )
        if self.generation >= 0 and self.previous_tasks <= 0:
            raise ConfigurationError(
                "a generation of tasks needs the number of tasks of the previous one",
                expected="source.task_offsets.previous_tasks (vitess.prev.num.tasks) above 0",
                found=str(self.previous_tasks),
            )


@dataclass(frozen=True)
class VitessStream:
    """Flags of VTGate's stream."""

    heartbeat_seconds: int = option(
        "Interval of VTGate's heartbeats in an idle stream; after three intervals without any message the "
        "stream is reopened",
        5,
        minimum=1,
    )
    empty_transactions: bool = option(
        "Also store a record of transactions without a captured row; the heartbeats of tablets cause one per "
        "second and shard",
        False,
    )
    stop_on_reshard: bool = option(
        "Stop when shards are split or merged: the run fails with the new shards and the offset to resume "
        "from, which an operator must store. false: VTGate continues with the new shards by itself",
        False,
    )
    journals: bool = option(
        "Request journals of reshards (Vitess 21; older servers ignore it) to report them in log and metrics",
        True,
    )
    minimize_skew: bool = option("Delay shards that are ahead of others by more than 2 seconds", False)
    transaction_chunk_bytes: int = option(
        "VTGate sends larger transactions in chunks instead of buffering them (Vitess 24); 0: only whole "
        "transactions",
        0,
        minimum=0,
    )
    keyspace_heartbeats: bool = option(
        "Also stream the tablets' heartbeat table (Vitess 21), as keyspace.heartbeat, if the patterns select "
        "it",
        False,
    )
    exclude_keyspace_from_table_name: bool = option(
        "Request table names without the keyspace, which saves VTGate a copy of each event (Vitess 23; older "
        "servers ignore it). The captured data is the same",
        False,
    )
    cells: tuple[str, ...] = option("Cells whose tablets may be read; default: the cell of VTGate", ())
    cell_preference: str = option("preferlocalwithalias, or onlyspecified", "")
    tablet_order: str = option("any, or inorder of the tablet types", "")

    def __post_init__(self) -> None:
        """Reject flags that VTGate ignores in combination with others.

        Raises:
            ConfigurationError: There is such a combination.
        """
        if self.minimize_skew and self.transaction_chunk_bytes:
            raise ConfigurationError(
                "option source.stream.transaction_chunk_bytes has no effect with minimize_skew",
                expected="one of the two",
            )


@dataclass(frozen=True)
class VitessAdvanced:
    """Advanced options."""

    strict: bool = option(
        "Fail on the first event that can't be parsed or decoded instead of quarantining it", False
    )
    log_quarantined_events: bool = option(
        "Log the position of each quarantined event; false: only count them", True
    )
    slice_bytes: int = option("Bytes of the stream that one task converts to records", 4 << 20, minimum=1)
    read_ahead_bytes: int = option(
        "Approximate limit of prefetched changes, in bytes; 0: no limit",
        64 << 20,
        minimum=0,
    )
    read_ahead_events: int = option(
        "Approximate limit of prefetched row changes; the limit reached first applies. 0: no limit",
        1_000_000,
        minimum=0,
    )
    call_timeout_seconds: float = option("Timeout of statements", 30.0, minimum=0.1)
    stall_timeout_seconds: float = option(
        "Maximum time without a transaction while the head is ahead, before the run fails",
        300.0,
        minimum=1.0,
    )
    connect_attempts: int = option(
        "Number of retries after a lost connection to VTGate, each after a pause. With the default pauses a "
        "run fails after 20 min 7 s; 0: at once; -1: never",
        16,
        minimum=NO_LIMIT,
    )
    connect_backoff_seconds: float = option(
        "Pause after the first failed attempt; it doubles with each further attempt", 1.0, minimum=0.0
    )
    connect_max_backoff_seconds: float = option("Maximum pause", 120.0, minimum=0.0)


@dataclass(frozen=True)
class VitessOptions(SourceOptions):
    """Options of a Vitess source."""

    keyspace: str = option(
        "The keyspace; or, after a slash, a regular expression that selects all matching keyspaces",
        check=_keyspace,
    )
    conn_id: str = option("Airflow connection of VTGate; not needed offline", "")
    shards: tuple[str, ...] = option("Shards to read; default: all serving shards", (), check=_shards)
    tablet_type: Literal["PRIMARY", "REPLICA", "RDONLY"] = option(
        "Type of the tablets to read; MASTER is PRIMARY", "PRIMARY", read=_tablet_type
    )
    exclude_empty_shards: bool = option(
        "Exclude shards without a serving tablet of the type; otherwise a stream waits for them", False
    )
    start_at: str = option(
        "Position at which the first run starts: current, or a VGTID as JSON with keyspace, shard and gtid "
        "of each shard. Ignored once there is an offset",
        CURRENT,
        read=_start_at,
        check=_vgtid,
    )
    streams: int = option(
        "Number of parallel VStreams, each reading some of the shards (tasks.max)", 1, minimum=1
    )
    epochs: Mapping[str, int] = option(
        "Epochs of the shards before the first run, instead of 0 (vitess.shard.epoch.map): of all shards, or "
        "none. Ignored once there is an offset",
        {},
        read=_json_object,
        check=_epochs,
    )
    generation: int = option(
        "Generation of the connector (vitess.connector.generation): if it differs from the offset's, the "
        "epochs of all shards increase by one",
        0,
        minimum=0,
    )
    task_offsets: VitessTaskOffsets = option(
        "How Debezium's tasks store their offsets, for import and export", VitessTaskOffsets
    )
    batch_interval_seconds: float = option(
        "Minimum interval between the starts of two full reads of a table without a key, for runs in quick "
        "succession",
        60.0,
        minimum=0.0,
    )
    stream: VitessStream = option("Flags of VTGate's stream", VitessStream)
    advanced: VitessAdvanced = option("Advanced options", VitessAdvanced)

    @property
    def strict(self) -> bool:
        """Whether a record that can't be decoded fails the job instead of being quarantined."""
        return self.advanced.strict

    def __post_init__(self) -> None:
        """Reject a start position of other shards than those to read.

        Raises:
            ConfigurationError: The options contradict each other.
        """
        if self.shards and self.keyspace.startswith("/"):
            raise ConfigurationError(
                "option source.shards can't be used with several keyspaces",
                expected="one keyspace in source.keyspace",
                found=self.keyspace,
            )
        if self.shards:
            require_epochs_of(self.shards, self.epochs)
        if self.start_at == CURRENT:
            return
        named = {(entry["keyspace"], entry["shard"]) for entry in json.loads(self.start_at)}
        require_epochs_of((shard for _, shard in named), self.epochs)
        if any(not has_keyspace(self.keyspace, keyspace) for keyspace, _ in named) or (
            self.shards and {shard for _, shard in named} != set(self.shards)
        ):
            raise ConfigurationError(
                "option source.start_at doesn't name the shards to read",
                expected=f"keyspace {self.keyspace}, {', '.join(self.shards) or 'all its shards'}",
                found=", ".join(sorted("/".join(pair) for pair in named)),
            )

    def validate(self, connector: Connector) -> None:
        """Validate the event options of Vitess."""
        validate_vitess_options(connector.publish.transactions, connector.publish.vitess)


def require_epochs_of(shards: Iterable[str], epochs: Mapping[str, int]) -> None:
    """Reject epochs of other shards than those at the start of a capture.

    Args:
        shards: Names of the shards at the start.
        epochs: Option ``epochs``.

    Raises:
        ConfigurationError: The shards differ.
    """
    names = sorted(shards)
    if epochs and set(epochs) != set(names):
        raise ConfigurationError(
            "option source.epochs doesn't name the shards at the start of the capture",
            expected=", ".join(names),
            found=", ".join(sorted(epochs)),
        )
