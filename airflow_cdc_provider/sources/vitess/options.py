"""Options of a Vitess source. Light: read by DAG files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.sources.pauses import NO_LIMIT

CURRENT: Final = "current"

_SHARD: Final = re.compile(r"0|[A-Za-z0-9_]+|(?:[0-9a-f]{2})*-(?:[0-9a-f]{2})*")


def _shards(values: tuple[str, ...]) -> str:
    wrong = [value for value in values if not _SHARD.fullmatch(value)]
    if wrong:
        return f"names of shards, such as -80, 80- or 0 (not {wrong[0]!r})"
    return "" if len(set(values)) == len(values) else "each shard once"


def _keyspace(value: str) -> str:
    if value.startswith("/"):
        try:
            re.compile(value.strip("/"))
        except re.error as error:
            return f"a regular expression behind the slash ({error})"
        return "" if value.strip("/") else "a regular expression behind the slash"
    return "" if re.fullmatch(r"[^\s/:@.`]+", value) else "a keyspace, or an expression behind a slash"


def has_keyspace(chosen: str, keyspace: str) -> bool:
    """Tell whether a keyspace is among those of option ``keyspace``: by its name, or as VTGate matches it."""
    if chosen.startswith("/"):
        return re.search(chosen.strip("/"), keyspace) is not None
    return chosen == keyspace


def _tablet_type(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    upper = value.upper()
    return {"MASTER": "PRIMARY", "BATCH": "RDONLY"}.get(upper, upper)


def _start_at(value: Any) -> Any:
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
            return f"{expected}; for a copy of what is there take a snapshot"
        shards.append((entry["keyspace"], entry["shard"]))
    return "" if len(set(shards)) == len(shards) else expected


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
    """How Debezium's tasks keep their offsets.

    Says nothing to a capture, whose offset has an entry per shard: only to ``airflow cdc offsets import`` and
    ``export``. The number of tasks is ``source.streams``.
    """

    per_task: bool = option(
        "Each task of Debezium keeps an offset of its own shards, under the key taskI_N_G "
        "(vitess.offset.storage.per.task)",
        False,
    )
    generation: int = option(
        "G, which rises with each change of the number of tasks (vitess.offset.storage.task.key.gen); 0 is "
        "also what an offset without a key counts as",
        -1,
        minimum=-1,
    )
    previous_tasks: int = option(
        "How many tasks there really were in the generation before (vitess.prev.num.tasks)", -1, minimum=-1
    )

    def __post_init__(self) -> None:
        """Refuse tasks without a generation, and one without what was before.

        Raises:
            ConfigurationError: With what is missing.
        """
        if self.per_task and self.generation < 0:
            raise ConfigurationError(
                "offsets per task need a generation",
                expected="source.task_offsets.generation (vitess.offset.storage.task.key.gen) of 0 or more",
                found=str(self.generation),
            )
        if self.generation >= 0 and self.previous_tasks <= 0:
            raise ConfigurationError(
                "a generation of tasks needs the number of tasks before it",
                expected="source.task_offsets.previous_tasks (vitess.prev.num.tasks) above 0",
                found=str(self.previous_tasks),
            )


@dataclass(frozen=True)
class VitessStream:
    """What is asked of VTGate's stream."""

    heartbeat_seconds: int = option(
        "After how many seconds of silence VTGate tells that it lives; three times as long without a word, "
        "and the stream is opened anew",
        5,
        minimum=1,
    )
    empty_transactions: bool = option(
        "Keep a record also of transactions without a captured row; tablets' own heartbeats make one per "
        "second and shard",
        False,
    )
    stop_on_reshard: bool = option(
        "Stop where shards are split or merged: the run fails with the new shards and the offset to go on "
        "from, which a person stores. false: VTGate goes on with the new shards by itself",
        False,
    )
    journals: bool = option(
        "Have a reshard's journal sent (21; older servers pass over it), so that log and metrics tell of it",
        True,
    )
    minimize_skew: bool = option("Hold back shards that are ahead of others by more than 2 seconds", False)
    transaction_chunk_bytes: int = option(
        "Transactions larger than this are sent while VTGate still gets them, so that it needs not hold them "
        "(24); 0: each when it is whole",
        0,
        minimum=0,
    )
    keyspace_heartbeats: bool = option(
        "Stream the rows of the tablets' table heartbeat too (21), by the name keyspace.heartbeat, where the "
        "patterns select it",
        False,
    )
    exclude_keyspace_from_table_name: bool = option(
        "Have tables named without their keyspace, which spares VTGate a copy of each event (23; older "
        "servers pass over it). What is captured stays the same",
        False,
    )
    cells: tuple[str, ...] = option("Cells whose tablets may be read; default: VTGate's own", ())
    cell_preference: str = option("preferlocalwithalias, or onlyspecified", "")
    tablet_order: str = option("any, or inorder of the tablet types", "")

    def __post_init__(self) -> None:
        """Refuse flags that VTGate would pass over beside others.

        Raises:
            ConfigurationError: With what goes together.
        """
        if self.minimize_skew and self.transaction_chunk_bytes:
            raise ConfigurationError(
                "option source.stream.transaction_chunk_bytes says nothing with minimize_skew",
                expected="one of the two",
            )


@dataclass(frozen=True)
class VitessAdvanced:
    """Options that few users need."""

    strict: bool = option("Fail on the first broken or undecodable event instead of setting it apart", False)
    warn_of_broken: bool = option(
        "Log where each broken event stands that is set apart; false: they are counted alone", True
    )
    slice_bytes: int = option("Bytes of the stream that one task turns into records", 4 << 20, minimum=1)
    read_ahead_bytes: int = option(
        "Bytes of changes fetched while those before are worked on, about; 0: no such limit",
        64 << 20,
        minimum=0,
    )
    read_ahead_events: int = option(
        "Row changes fetched so, about; whichever limit is met first holds. 0: no such limit",
        1_000_000,
        minimum=0,
    )
    call_seconds: float = option("How long a statement may take", 30.0, minimum=0.1)
    stall_seconds: float = option(
        "How long a stream may give no transaction although there are some, before the run fails",
        300.0,
        minimum=1.0,
    )
    connect_attempts: int = option(
        "How many failed attempts to reach VTGate, once it was reached, are followed by a pause and another "
        "one. With the default pauses a run fails after 20 min 7 s of them; 0: at once; -1: never",
        16,
        minimum=NO_LIMIT,
    )
    connect_pause_seconds: float = option(
        "The pause after the first failed attempt; each next one is twice as long", 1.0, minimum=0.0
    )
    connect_longest_pause_seconds: float = option("The longest such pause", 120.0, minimum=0.0)


@dataclass(frozen=True)
class VitessOptions:
    """Which shards to read, and how."""

    keyspace: str = option(
        "The keyspace; or, behind a slash, a regular expression: all keyspaces in which it is found",
        check=_keyspace,
    )
    conn_id: str = option("Airflow connection of VTGate; not needed offline", "")
    shards: tuple[str, ...] = option("Shards to read; default: all that serve", (), check=_shards)
    tablet_type: Literal["PRIMARY", "REPLICA", "RDONLY"] = option(
        "Type of the tablets that are read; MASTER is PRIMARY", "PRIMARY", read=_tablet_type
    )
    exclude_empty_shards: bool = option(
        "Leave out shards that no tablet of the type serves; without, a stream waits for them", False
    )
    start_at: str = option(
        "Where the first run begins to capture: current, or a VGTID as JSON with keyspace, shard and gtid of "
        "each shard. Says nothing once there is an offset",
        CURRENT,
        read=_start_at,
        check=_vgtid,
    )
    streams: int = option(
        "VStreams that are read at once, each of its share of the shards (tasks.max)", 1, minimum=1
    )
    epochs: Mapping[str, int] = option(
        "Epochs that shards have before the first run, instead of 0 (vitess.shard.epoch.map): all shards, or "
        "none. Says nothing once there is an offset",
        {},
        read=_json_object,
        check=_epochs,
    )
    generation: int = option(
        "The connector's generation (vitess.connector.generation): with another one than the offset's the "
        "epochs of all shards rise by one",
        0,
        minimum=0,
    )
    task_offsets: VitessTaskOffsets = option(
        "How Debezium's tasks keep their offsets, for their import and export", VitessTaskOffsets
    )
    batch_seconds: float = option(
        "How long after the begin of one reading of a table without a key, which each run reads in full, the "
        "next one may begin, for runs that follow closely",
        60.0,
        minimum=0.0,
    )
    stream: VitessStream = option("What is asked of VTGate's stream", VitessStream)
    advanced: VitessAdvanced = option("Options that few users need", VitessAdvanced)

    def __post_init__(self) -> None:
        """Refuse a start of other shards than those that are read.

        Raises:
            ConfigurationError: With what fits.
        """
        if self.shards and self.keyspace.startswith("/"):
            raise ConfigurationError(
                "option source.shards says nothing of several keyspaces",
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
                "option source.start_at names other shards than are read",
                expected=f"keyspace {self.keyspace}, {', '.join(self.shards) or 'all its shards'}",
                found=", ".join(sorted("/".join(pair) for pair in named)),
            )


def require_epochs_of(shards: Iterable[str], epochs: Mapping[str, int]) -> None:
    """Refuse epochs of other shards than those that a capture begins with.

    Raises:
        ConfigurationError: With both.
    """
    names = sorted(shards)
    if epochs and set(epochs) != set(names):
        raise ConfigurationError(
            "option source.epochs names other shards than the capture begins with",
            expected=", ".join(names),
            found=", ".join(sorted(epochs)),
        )
