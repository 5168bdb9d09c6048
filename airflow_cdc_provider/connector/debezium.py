r"""Debezium's ``.properties`` as a declaration: the same options, under our names.

Nothing is dropped silently. Each property is mapped to an option; or left out with a note, where Debezium
needs it for itself (its own queue sizes) or it belongs to the Airflow connection (addresses, secrets); or
refused with the reason, where leaving it out would change what comes out. A property that stands at
Debezium's own default is always accepted. An unknown name is refused with the nearest known one.

Names and defaults: Debezium 3.6 (MongoDB) and 3.4 (Cassandra).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.selection import server_applies

_CLASSES: Final = {
    "io.debezium.connector.mongodb.MongoDbConnector": "mongodb",
    "io.debezium.connector.cassandra.CassandraConnector": "cassandra",
}
_JSON_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True)
class Imported:
    """A declaration made of properties.

    Args:
        connector: The declaration.
        notes: What was left out, a sentence each.
    """

    connector: Connector
    notes: tuple[str, ...]


def load_debezium_properties(path: str | Path) -> Imported:
    """Read a ``.properties`` file.

    Raises:
        ConfigurationError: The file is missing, or a property is unknown, wrong or can't be followed.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no connector file {file}") from error
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # what java.util.Properties reads
    return from_debezium(parse_properties(text))


def from_debezium(properties: Mapping[str, str]) -> Imported:
    """Make a declaration of Debezium's properties.

    Raises:
        ConfigurationError: Names the property, what was found and what was expected.
    """
    draft = _Draft(_source_type(properties), properties)
    rules = _RULES[draft.type]
    for name, value in properties.items():
        rule = rules.get(name) or _family(name, rules)
        if rule is None:
            raise _unknown(name, rules)
        rule(draft, name, value.strip())
    _finish(draft)
    return Imported(Connector.from_dict(draft.values), tuple(draft.notes))


def parse_properties(text: str) -> dict[str, str]:
    r"""Read Java's properties format: separators ``=``, ``:``, space; ``\`` to go on; ``\uXXXX``; ``#``."""
    properties: dict[str, str] = {}
    logical = ""
    for line in text.splitlines():
        stripped = line.lstrip(" \t\f")
        if not logical and (not stripped or stripped[0] in "#!"):
            continue
        logical += stripped
        if (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1]
            continue
        name, value = _split_property(logical)
        properties[name] = value
        logical = ""
    if logical:
        name, value = _split_property(logical)
        properties[name] = value
    return properties


_PROPERTY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _split_property(line: str) -> tuple[str, str]:
    match = _PROPERTY.fullmatch(line)
    assert match is not None  # the expression matches every text
    return _unescape(match[1]), _unescape(match[2])


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(one, text)


@dataclass
class _Draft:
    """The declaration while it is made."""

    type: str
    properties: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    databases: list[str] = field(default_factory=list)
    excluded_databases: list[str] = field(default_factory=list)

    def set(self, path: str, value: object) -> None:
        """Set an option given by its dotted place."""
        *parts, last = path.split(".")
        target = self.values
        for part in parts:
            target = target.setdefault(part, {})
        target[last] = value

    def patterns(self, value: str) -> list[str]:
        """Split a list of names: expressions without regard to case, or literals."""
        entries = [part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", value)]
        entries = [entry for entry in entries if entry]
        if self.properties.get("filters.match.mode", "regex").strip() == "literal":
            return [re.escape(entry) for entry in entries]
        return [f"(?i:{entry})" for entry in entries]


_Rule = Callable[[_Draft, str, str], None]


def _source_type(properties: Mapping[str, str]) -> str:
    name = properties.get("connector.class", "").strip()
    if name in _CLASSES:
        return _CLASSES[name]
    if name:
        raise ConfigurationError(
            "property connector.class is wrong", expected=f"one of {', '.join(_CLASSES)}", found=repr(name)
        )
    # Debezium's Cassandra connector is a program of its own, whose file names no class.
    cassandra = any(n.startswith(("cassandra.", "commit.log.", "kafka.")) for n in properties)
    return "cassandra" if cassandra else "mongodb"


def _finish(draft: _Draft) -> None:
    """Put together what several properties say."""
    prefix = draft.values.get("publish", {}).get("topic_prefix")
    draft.values.setdefault("name", prefix or draft.type)
    draft.values.setdefault("source", {})["type"] = draft.type
    if draft.include and draft.exclude:
        raise ConfigurationError("properties exclude each other", found="an include and an exclude list")
    if draft.databases and draft.include:
        scope = "|".join(draft.databases)
        draft.include = [rf"(?=(?:{scope})\.){entry}" for entry in draft.include]
    elif draft.databases:
        draft.include = [rf"{database}\..*" for database in draft.databases]
    if draft.include:
        draft.set("tables", draft.include)
    built_in = ["admin", "local", "config"] if draft.type == "mongodb" else []
    databases = [*draft.excluded_databases, *built_in]
    if draft.exclude or databases:
        draft.set("exclude_tables", [*draft.exclude, *(rf"{entry}\..*" for entry in databases)])
    if draft.type == "mongodb":
        _capture_mode(draft)
        _note_what_the_server_cannot_apply(draft)
    else:
        draft.values.setdefault("publish", {}).setdefault("tombstones", False)  # Debezium's default there


def _note_what_the_server_cannot_apply(draft: _Draft) -> None:
    for option in ("tables", "exclude_tables"):
        for pattern in draft.values.get(option, ()):
            if _compiles(pattern) and not server_applies(pattern):
                draft.notes.append(
                    f"MongoDB can't apply {pattern} of {option}: it sends what it could have left out, and "
                    "the capture chooses. Literals, '.', classes, groups and quantifiers of ASCII it can"
                )


def _compiles(pattern: str) -> bool:
    """Tell whether a pattern is one at all; the declaration refuses others with its own message."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


_CAPTURE_MODES: Final = {
    "change_streams": (False, False),
    "change_streams_with_pre_image": (False, True),
    "change_streams_update_full": (True, False),
    "change_streams_update_full_with_pre_image": (True, True),
}


def _capture_mode(draft: _Draft) -> None:
    mode = draft.properties.get("capture.mode", "change_streams_update_full").strip().lower()
    if mode not in _CAPTURE_MODES:
        raise _wrong("capture.mode", f"one of {', '.join(_CAPTURE_MODES)}", mode)
    full, pre_images = _CAPTURE_MODES[mode]
    kind = draft.properties.get("capture.mode.full.update.type", "lookup").strip().lower()
    if kind not in ("lookup", "post_image"):
        raise _wrong("capture.mode.full.update.type", "lookup or post_image", kind)
    draft.set("source.full_document", kind if full else "none")
    draft.set("source.pre_images", pre_images)


def _wrong(name: str, expected: str, found: str) -> ConfigurationError:
    return ConfigurationError(f"property {name} is wrong", expected=expected, found=repr(found))


def _unknown(name: str, rules: Mapping[str, _Rule]) -> ConfigurationError:
    near = difflib.get_close_matches(name, list(rules), n=1, cutoff=0.0)
    return ConfigurationError(
        f"unknown property {name}",
        expected="a property of Debezium's connector",
        remedy=f"Did you mean {near[0]}?" if near else "",
    )


def _family(name: str, rules: Mapping[str, _Rule]) -> _Rule | None:
    """Find the rule of names that share a beginning (``kafka.producer.*``), the longest first."""
    families = sorted((rule for rule in rules if rule.endswith("*")), key=len, reverse=True)
    return next((rules[family] for family in families if name.startswith(family[:-1])), None)


def _option(path: str) -> _Rule:
    """Map text as it is."""
    return lambda draft, name, value: draft.set(path, value)


def _name(path: str) -> _Rule:
    """Map what leads topics and names files."""

    def rule(draft: _Draft, name: str, value: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", value):
            raise _wrong(name, "letters, digits, _ . and -, at most 100", value)
        draft.set(path, value)

    return rule


def _flag(path: str) -> _Rule:
    def rule(draft: _Draft, name: str, value: str) -> None:
        draft.set(path, _boolean(name, value))

    return rule


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _wrong(name, "true or false", value)
    return value.lower() == "true"


def _number(path: str, *, per: float = 1) -> _Rule:
    """Map a whole number, divided by ``per`` (1000 makes ms seconds)."""

    def rule(draft: _Draft, name: str, value: str) -> None:
        if not re.fullmatch(r"\d+", value):
            raise _wrong(name, "a whole number", value)
        draft.set(path, int(value) if per == 1 else int(value) / per)

    return rule


def _choice(path: str, choices: Mapping[str, object], reason: str = "") -> _Rule:
    """Map a word by a table; None marks words that can't be followed."""

    def rule(draft: _Draft, name: str, value: str) -> None:
        word = value.lower()
        if word not in choices:
            raise _wrong(name, f"one of {', '.join(choices)}", value)
        mapped = choices[word]
        if mapped is None:
            raise _refusal(name, value, reason)
        if path:
            draft.set(path, mapped)

    return rule


def _left_out(reason: str) -> _Rule:
    """Leave out what only Debezium's own process or the connection needs."""
    return lambda draft, name, value: draft.notes.append(f"property {name} is left out: {reason}")


def _refused(reason: str, *defaults: str) -> _Rule:
    """Refuse every value but Debezium's default (or an empty one)."""

    def rule(draft: _Draft, name: str, value: str) -> None:
        if value and value not in defaults:
            raise _refusal(name, value, reason)

    return rule


def _refusal(name: str, value: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"property {name} can't be followed", found=repr(value), remedy=reason)


def _nothing(draft: _Draft, name: str, value: str) -> None:
    """Read elsewhere, together with other properties."""


def _include(draft: _Draft, name: str, value: str) -> None:
    draft.include += draft.patterns(value)


def _exclude(draft: _Draft, name: str, value: str) -> None:
    draft.exclude += draft.patterns(value)


def _include_databases(draft: _Draft, name: str, value: str) -> None:
    draft.databases += draft.patterns(value)


def _exclude_databases(draft: _Draft, name: str, value: str) -> None:
    if draft.properties.get("database.include.list"):
        raise ConfigurationError("properties exclude each other", found="database.include.list and " + name)
    draft.excluded_databases += draft.patterns(value)


def _schemas(draft: _Draft, name: str, value: str) -> None:
    other = "value" if name.startswith("key") else "key"
    rest = draft.properties.get(f"{other}.converter.schemas.enable", value).strip()
    if _boolean(name, value) != _boolean(f"{other}.converter.schemas.enable", rest):
        raise _refusal(name, value, "Keys and values are written alike: with schemas or without")
    draft.set("publish.schemas", _boolean(name, value))


def _snapshot_filters(draft: _Draft, name: str, value: str) -> None:
    filters = {}
    for table in filter(None, (part.strip() for part in value.split(","))):
        text = draft.properties.get(f"{name}.{table}")
        if text is None:
            raise ConfigurationError(
                f"property {name}.{table} is missing", expected="the collection's filter"
            )
        filters[table] = text
    draft.set("snapshot.filters", filters)


_CONNECTION: Final = _left_out("it belongs into the Airflow connection that source.conn_id names")
_PROCESS: Final = _left_out("it sizes or paces Debezium's own process; here Spark's batches do")
_STATE: Final = _left_out("positions are kept in the lake, in the commit of their data")
_PRODUCER: Final = _left_out("it belongs into the Kafka connection")
_NO_TRANSFORMS: Final = _refused("There are no transforms; shape events downstream")
_NO_SIGNALS: Final = _refused("Signals are not read; start a snapshot by its operator")
_NO_NOTIFICATIONS: Final = _refused("Notifications are not sent; use Airflow's callbacks", "false")

_COMMON: Final[dict[str, _Rule]] = {
    "connector.class": _nothing,
    "name": _name("name"),
    "tasks.max": _left_out("Spark divides the work"),
    "topic.prefix": _name("publish.topic_prefix"),
    "topic.delimiter": _refused("Only '.' is written between the parts of a topic", "."),
    "topic.naming.strategy": _refused(
        "Only Debezium's default strategy is followed",
        "io.debezium.schema.DefaultTopicNamingStrategy",
        "io.debezium.schema.SchemaTopicNamingStrategy",
    ),
    "topic.cache.size": _PROCESS,
    "topic.heartbeat.prefix": _left_out("heartbeats are not sent"),
    "topic.heartbeat.name": _left_out("heartbeats are not sent"),
    "heartbeat.interval.ms": _refused("Heartbeats are not sent; the offset advances with each commit", "0"),
    "heartbeat.action.query": _refused("Heartbeats are not sent"),
    "tombstones.on.delete": _flag("publish.tombstones"),
    "extended.headers.enabled": _flag("publish.headers"),
    "key.converter": _refused("Only JsonConverter is offered", _JSON_CONVERTER),
    "value.converter": _refused("Only JsonConverter is offered", _JSON_CONVERTER),
    "key.converter.schemas.enable": _schemas,
    "value.converter.schemas.enable": _schemas,
    "key.converter.*": _refused("Options of converters but schemas.enable are not known"),
    "value.converter.*": _refused("Options of converters but schemas.enable are not known"),
    "converters": _refused("Custom converters are Java classes"),
    "transforms": _NO_TRANSFORMS,
    "transforms.*": _NO_TRANSFORMS,
    "predicates": _NO_TRANSFORMS,
    "predicates.*": _NO_TRANSFORMS,
    "post.processors": _refused("Post processors are Java classes"),
    "skipped.operations": _refused("All operations are written; filter them downstream", "none", "t"),
    "skip.messages.without.change": _refused("All changes are written", "false"),
    "provide.transaction.metadata": _refused("Transaction metadata are not written", "false"),
    "topic.transaction": _left_out("transaction metadata are not written"),
    "transaction.metadata.factory": _refused(
        "Transaction metadata are not written",
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
    ),
    "schema.name.adjustment.mode": _refused("Names of schemas are not adjusted", "none"),
    "field.name.adjustment.mode": _refused("Names of fields are not adjusted", "none"),
    "sanitize.field.names": _refused("Names of fields are not adjusted", "false"),
    "field.exclude.list": _refused("Fields can't be left out yet"),
    "max.batch.size": _PROCESS,
    "max.queue.size": _PROCESS,
    "max.queue.size.in.bytes": _PROCESS,
    "poll.interval.ms": _PROCESS,
    "errors.max.retries": _left_out("Airflow's retries of the task do this"),
    "errors.retry.delay.initial.ms": _left_out("Airflow's retries of the task do this"),
    "errors.retry.delay.max.ms": _left_out("Airflow's retries of the task do this"),
    "retriable.restart.connector.wait.ms": _left_out("Airflow's retries of the task do this"),
    "event.processing.failure.handling.mode": _choice(
        "source.advanced.strict", {"fail": True, "warn": False, "skip": False, "ignore": False}
    ),
    "custom.metric.tags": _left_out("metrics are Airflow's"),
    "statistics.metrics.enabled": _left_out("metrics are Airflow's"),
    "advanced.metrics.enable": _left_out("metrics are Airflow's"),
    "custom.sanitize.pattern": _left_out("it hides values in Debezium's log"),
    "snapshot.delay.ms": _left_out("the DAG's schedule decides when a run starts"),
    "streaming.delay.ms": _left_out("the DAG's schedule decides when a run starts"),
    "signal.data.collection": _NO_SIGNALS,
    "signal.enabled.channels": _refused("Signals are not read; start a snapshot by its operator", "source"),
    "signal.poll.interval.ms": _left_out("signals are not read"),
    "signal.file": _NO_SIGNALS,
    "signal.kafka.*": _NO_SIGNALS,
    "signal.consumer.*": _NO_SIGNALS,
    "notification.enabled.channels": _NO_NOTIFICATIONS,
    "notification.sink.topic.name": _NO_NOTIFICATIONS,
    "incremental.snapshot.*": _left_out("snapshots are cut into ranges by Spark"),
    "read.only": _left_out("nothing is ever written to the source"),
    "guardrail.collections.max": _refused("The number of collections is not limited", "0"),
    "guardrail.collections.limit.action": _left_out("the number of collections is not limited"),
    "connection.validation.timeout.ms": _PROCESS,
    "executor.shutdown.timeout.ms": _PROCESS,
    "openlineage.integration.*": _left_out("lineage is Airflow's"),
    "offset.storage": _STATE,
    "offset.storage.*": _STATE,
    "offset.flush.*": _STATE,
    "internal.*": _refused("Debezium's internal switches have no counterpart"),
    "producer.*": _PRODUCER,
    "bootstrap.servers": _PRODUCER,
}

_MONGODB: Final[dict[str, _Rule]] = {
    **_COMMON,
    "mongodb.connection.string": _CONNECTION,
    "mongodb.connection.mode": _left_out("all shards are one stream"),
    "mongodb.user": _CONNECTION,
    "mongodb.password": _CONNECTION,
    "mongodb.authsource": _CONNECTION,
    "mongodb.authentication.class": _refused(
        "Credentials come from the Airflow connection",
        "io.debezium.connector.mongodb.connection.DefaultMongoDbAuthProvider",
    ),
    "mongodb.ssl.*": _CONNECTION,
    "mongodb.hosts": _CONNECTION,
    "mongodb.name": _name("publish.topic_prefix"),
    "mongodb.connect.timeout.ms": _number("source.advanced.connect_timeout_seconds", per=1000),
    "mongodb.server.selection.timeout.ms": _CONNECTION,
    "mongodb.socket.timeout.ms": _CONNECTION,
    "mongodb.heartbeat.frequency.ms": _CONNECTION,
    "mongodb.poll.interval.ms": _PROCESS,
    "connect.max.attempts": _left_out("Airflow's retries of the task do this"),
    "connect.backoff.initial.delay.ms": _left_out("Airflow's retries of the task do this"),
    "connect.backoff.max.delay.ms": _left_out("Airflow's retries of the task do this"),
    "filters.match.mode": _choice("", {"regex": "regex", "literal": "literal"}),
    "database.include.list": _include_databases,
    "database.exclude.list": _exclude_databases,
    "collection.include.list": _include,
    "collection.exclude.list": _exclude,
    "field.renames": _refused("Fields can't be renamed yet"),
    "capture.mode": _nothing,
    "capture.mode.full.update.type": _nothing,
    "capture.scope": _choice(
        "source.scope", {"deployment": "deployment", "database": "database", "collection": "collection"}
    ),
    "capture.target": _option("source.target"),
    "capture.start.op.time": _refused("Set the start by 'airflow cdc offsets set'"),
    "cursor.pipeline": _refused("Stages of one's own are not sent to the server; select by 'tables'"),
    "cursor.pipeline.order": _left_out("stages of one's own are not sent to the server"),
    "cursor.oversize.handling.mode": _refused(
        "Events above the server's limit of 16 MB are split and put together again", "fail", "split"
    ),
    "cursor.oversize.skip.threshold": _refused("No event is left out for its size", "0"),
    "cursor.max.await.time.ms": _number("source.advanced.max_await_seconds", per=1000),
    "snapshot.mode": _choice(
        "snapshot.mode",
        {
            "initial": "initial",
            "always": "always",
            "no_data": "never",
            "never": "never",
            "initial_only": None,
            "when_needed": None,
            "configuration_based": None,
            "custom": None,
        },
        "Use initial, always or no_data; the snapshot operator reads tables without a stream",
    ),
    "snapshot.mode.configuration.based.*": _refused("Only initial, always and no_data are offered", "false"),
    "snapshot.mode.custom.name": _refused("Only initial, always and no_data are offered"),
    "snapshot.max.threads": _left_out("Spark divides the work"),
    "snapshot.fetch.size": _PROCESS,
    "snapshot.include.collection.list": _refused("Snapshots read every captured collection"),
    "snapshot.collection.filter.overrides": _snapshot_filters,
    "snapshot.collection.filter.overrides.*": _nothing,
    "json.serialization.mode": _refused("Only Debezium's classic form is written", "legacy"),
    "source.struct.version": _refused("Only version 2 is written", "v2"),
    "change.event.key.mode": _refused("Keys are the document's _id", "document_id"),
    "mongodb.allow.offset.invalidation": _STATE,
    "startup.mode": _refused("Set the start by 'airflow cdc offsets set'"),
}

_CASSANDRA: Final[dict[str, _Rule]] = {
    **_COMMON,
    "connector.name": _name("name"),
    "kafka.topic.prefix": _name("publish.topic_prefix"),
    "kafka.producer.*": _PRODUCER,
    "kafka.consumer.*": _PRODUCER,
    "snapshot.mode": _choice(
        "snapshot.mode", {"initial": "initial", "always": "initial", "never": "never", "no_data": "never"}
    ),
    "snapshot.consistency": lambda draft, name, value: draft.set("source.consistency", value.upper()),
    "snapshot.scan.interval.ms": _left_out("each run looks for new tables"),
    "http.port": _left_out("Airflow shows the task's health"),
    "cassandra.config": _left_out("segments name their compression and cipher themselves"),
    "cassandra.node.id": _option("source.node"),
    "cassandra.hosts": _CONNECTION,
    "cassandra.port": _CONNECTION,
    "cassandra.username": _CONNECTION,
    "cassandra.password": _CONNECTION,
    "cassandra.ssl.enabled": _CONNECTION,
    "cassandra.ssl.config.path": _CONNECTION,
    "cassandra.driver.*": _CONNECTION,
    "cassandra.cluster.name": _left_out("the cluster's name is read from its configuration"),
    "cdc.dir.poll.interval.ms": _PROCESS,
    "schema.refresh.interval.ms": _left_out("the log itself tells when a schema changes"),
    "commit.log.relocation.dir": _left_out("it is CommitLogTransferOperator's landing folder"),
    "commit.log.relocation.dir.poll.interval.ms": _left_out("the DAG's schedule says when to transfer"),
    "commit.log.post.processing.enabled": _left_out("it is after_commit of CommitLogTransferOperator"),
    "commit.log.transfer.class": _left_out("it is transfer_class of CommitLogTransferOperator"),
    "commit.log.error.reprocessing.enabled": _left_out("it is retry_errors of CommitLogTransferOperator"),
    "commit.log.real.time.processing.enabled": _left_out("open segments are always read up to their idx"),
    "commit.log.marked.complete.poll.interval": _PROCESS,
    "latest.commit.log.only": _refused("All segments after the stored offset are read", "false"),
    "offset.backing.store.dir": _STATE,
    "max.offset.flush.size": _STATE,
    "num.of.change.event.queues": _PROCESS,
    "event.order.guarantee.mode": _refused(
        "Events come in the log's order", "commitlog_file", "partition_values"
    ),
    "decimal.handling.mode": _refused("Decimals are written as doubles, as by default", "double", "DOUBLE"),
    "varint.handling.mode": _refused("Varints are written as int64, as by default", "long", "LONG"),
    "table.include.list": _include,
    "table.exclude.list": _exclude,
    "keyspace.include.list": _include_databases,
    "keyspace.exclude.list": _exclude_databases,
}

_RULES: Final = {"mongodb": _MONGODB, "cassandra": _CASSANDRA}
