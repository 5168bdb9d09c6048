"""Debezium's and Kafka Connect's converters with their settings, and what becomes of each.

Classes are Kafka's, Confluent's and Debezium's own. A setting of a converter stands behind ``key.converter.``
or ``value.converter.``; what is one choice here must be the same on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    boolean,
    left_out,
    read_elsewhere,
    refusal,
    refused,
    split_list,
    taken,
    wrong,
)

KINDS: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "io.confluent.connect.avro.AvroConverter": "avro",
    "io.confluent.connect.protobuf.ProtobufConverter": "protobuf",
    "io.confluent.connect.json.JsonSchemaConverter": "json_schema",
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "bytes",
    "io.debezium.converters.BinaryDataConverter": "bytes",
    "io.debezium.converters.ByteArrayConverter": "bytes",
    "io.debezium.converters.ByteBufferConverter": "bytes",
}
"""What the converters of each class are called here."""
_CLOUD_EVENTS_CONVERTER: Final = "io.debezium.converters.CloudEventsConverter"
_STRATEGIES: Final[Mapping[str, str]] = {
    f"io.confluent.kafka.serializers.subject.{name}Strategy": word
    for name, word in (("TopicName", "topic"), ("RecordName", "record"), ("TopicRecordName", "topic_record"))
}
REGISTERED: Final = ("avro", "protobuf", "json_schema")
"""Those that keep schemas in a registry."""


def take_converter(draft: Draft, name: str, value: str) -> None:
    """Take over how keys or values are written."""
    side = name.partition(".")[0]
    if side == "value" and draft.type in ("mongodb", "vitess") and value == _CLOUD_EVENTS_CONVERTER:
        draft.set("publish.envelope", "cloudevents")
        if f"{name}.json.schemas.enable" not in draft.properties:
            draft.notes.append(
                f"property {name}.json.schemas.enable isn't set: data of CloudEvents are written without "
                "schemas, Debezium's own default is with them; set it to true for those"
            )
        return
    kind = KINDS.get(value)
    if kind is None:
        offered = ", ".join(known.rpartition(".")[2] for known in KINDS)
        raise refusal(name, value, f"Offered are {offered}")
    draft.set(f"publish.{side}", kind)
    if kind == "protobuf":
        _take_nullables(draft, name)


def _take_nullables(draft: Draft, converter: str) -> None:
    """Take over how Protobuf declares fields that may be null, the converter's own default too."""
    word = "plain"
    for setting, meaning in (("wrapper", "wrapper"), ("optional", "optional")):
        name = f"{converter}.{setting}.for.nullables"
        if boolean(name, draft.properties.get(name, "false").strip()):
            word = meaning
    earlier = draft.get("publish.protobuf_nullables")
    if earlier not in (None, word):
        raise refusal(f"{converter}.{word}.for.nullables", "", "Keys and values are written alike")
    draft.set("publish.protobuf_nullables", word)
    if word == "plain" and earlier is None:
        draft.notes.append(
            f"property {converter}.optional.for.nullables isn't set: readers of Protobuf can't tell null "
            "from 0 or an empty text, as with Confluent's converter; publish.protobuf_nullables changes that"
        )


def take_schemas(draft: Draft, name: str, value: str) -> None:
    """Take over whether JSON has its schema."""
    other = "value" if name.startswith("key") else "key"
    rest = draft.properties.get(f"{other}.converter.schemas.enable", value).strip()
    if boolean(name, value) != boolean(f"{other}.converter.schemas.enable", rest):
        raise refusal(name, value, "Keys and values are written alike: with schemas or without")
    draft.set("publish.schemas", boolean(name, value))


def _is_registered(draft: Draft, name: str) -> bool:
    """Tell whether the converter that a setting belongs to keeps schemas in a registry."""
    side = name.partition(".")[0]
    return KINDS.get(draft.properties.get(f"{side}.converter", "").strip(), "") in REGISTERED


def _shared(path: str, read: Callable[[str, str], object], text: str = "") -> Rule:
    """Take over what is one choice for keys and values."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if not _is_registered(draft, name):
            draft.notes.append(f"property {name} is left out: its converter knows no registry")
            return
        meant = read(name, value)
        if draft.get(path) not in (None, meant):
            raise refusal(name, value, "Keys and values have one registry and use it alike")
        draft.set(path, meant)

    return taken(f"`{path}`{text}", apply)


def registry_address(name: str, value: str) -> str:
    """Return a registry's one address.

    Raises:
        ConfigurationError: There are several, or it has a login, which isn't shown.
    """
    addresses = split_list(value)
    if len(addresses) != 1:
        raise wrong(name, "one address", value)
    parts = urlsplit(addresses[0])
    if parts.username or parts.password:
        raise refusal(
            name, "", "The login belongs into the Airflow connection that registry.connection names"
        )
    return addresses[0]


def _subjects(draft: Draft, name: str, value: str) -> None:
    side = name.partition(".")[0]
    other = "value" if side == "key" else "key"
    if name.endswith(f".{other}.subject.name.strategy"):
        draft.notes.append(f"property {name} is left out: its converter writes no {other}s")
        return
    if not _is_registered(draft, name):
        draft.notes.append(f"property {name} is left out: its converter knows no registry")
        return
    if value not in _STRATEGIES:
        raise refusal(name, value, f"Offered are {', '.join(_STRATEGIES)}")
    draft.set(f"publish.registry.{side}_subjects", _STRATEGIES[value])


_REGISTRY: Final = left_out(
    "it belongs to the Airflow connection of the registry, which publish.registry.connection names"
)
_NAMES_ARE_FIT: Final = left_out("names are made fit by publish.schema_names and publish.field_names")
_CACHE: Final = left_out("each schema is asked for once in a process")
_PER_SIDE: Final[dict[str, Rule]] = {
    "": taken(
        "`publish.key` or `publish.value`: JsonConverter, AvroConverter, ProtobufConverter, "
        "JsonSchemaConverter, StringConverter, ByteArrayConverter, and Debezium's converters of bytes",
        take_converter,
    ),
    ".schemas.enable": taken("`publish.schemas`", take_schemas),
    ".decimal.format": refused("Decimals are written in base64, or as publish says for the source", "base64"),
    ".schemas.cache.size": _CACHE,
    ".schemas.cache.config": _CACHE,
    ".max.schemas.per.subject": _CACHE,
    ".schema.registry.url": _shared("publish.registry.url", registry_address),
    ".schema.registry.*": _REGISTRY,
    ".basic.auth.*": _REGISTRY,
    ".bearer.auth.*": _REGISTRY,
    ".auto.register.schemas": _shared("publish.registry.auto_register", boolean),
    ".normalize.schemas": _shared("publish.registry.normalize", boolean),
    ".use.latest.version": refused("Bytes are written by the schema of the events", "false"),
    ".latest.compatibility.strict": left_out("it is for use.latest.version"),
    ".subject.name.strategy": taken("`publish.registry.key_subjects`, `value_subjects`", _subjects),
    ".key.subject.name.strategy": taken("`publish.registry.key_subjects`, of a converter of keys", _subjects),
    ".value.subject.name.strategy": taken(
        "`publish.registry.value_subjects`, of a converter of values", _subjects
    ),
    ".enhanced.avro.schema.support": left_out(
        "names keep their namespaces, and events have no enumerations that it is about"
    ),
    ".connect.meta.data": refused("Avro's schemas have what Connect's say", "true"),
    ".enhanced.protobuf.schema.support": left_out("it is for reading Protobuf"),
    ".scrub.invalid.names": _NAMES_ARE_FIT,
    ".json.schema.spec.version": left_out("schemas say the same in drafts 4 to 7"),
    ".use.optional.for.nonrequired": left_out("it is for reading JSON Schema"),
    ".object.additional.properties": refused("Schemas leave further properties open", "true"),
    ".optional.for.nullables": read_elsewhere("`publish.protobuf_nullables`: optional"),
    ".wrapper.for.nullables": read_elsewhere("`publish.protobuf_nullables`: wrapper"),
    ".*": refused("Further options of converters are not known"),
}

VALUES_OR_CLOUD_EVENTS: Final = taken(
    f"{_PER_SIDE[''].text}; `publish.envelope: cloudevents` for CloudEventsConverter", take_converter
)
"""Rule of ``value.converter`` where there are CloudEvents."""
CONVERTERS: Final[dict[str, Rule]] = {
    f"{side}.converter{setting}": rule for side in ("key", "value") for setting, rule in _PER_SIDE.items()
}
"""Rules of all settings of converters."""
