"""Rules for converters of Kafka Connect, Confluent and Debezium.

Settings of a converter have the prefix ``key.converter.`` or ``value.converter.``. Where this package has one
option for both, keys and values must have the same setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.rules import Draft, Rule

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
"""Names of converters by class."""
_BLUE_APRON: Final = "com.blueapron.connect.protobuf.ProtobufConverter"
_CLOUD_EVENTS_CONVERTER: Final = "io.debezium.converters.CloudEventsConverter"
_STRATEGIES: Final[Mapping[str, str]] = {
    f"io.confluent.kafka.serializers.subject.{name}Strategy": word
    for name, word in (("TopicName", "topic"), ("RecordName", "record"), ("TopicRecordName", "topic_record"))
}
REGISTERED: Final = ("avro", "protobuf", "json_schema")
"""Converters that store schemas in a registry."""


def import_converter(draft: Draft, name: str, value: str) -> None:
    """Import the converter of keys or values."""
    side = name.partition(".")[0]
    if side == "value" and draft.type in ("mongodb", "vitess") and value == _CLOUD_EVENTS_CONVERTER:
        draft.set("publish.envelope", "cloudevents")
        if f"{name}.json.schemas.enable" not in draft.properties:
            draft.notes.append(
                f"property {name}.json.schemas.enable isn't set: CloudEvents data are written without "
                "schemas, while Debezium's default includes them; set it to true to include schemas"
            )
        return
    kind = KINDS.get(value)
    if kind is None:
        reason = "It reads the schema from a compiled Java class. " if value == _BLUE_APRON else ""
        raise rules.unsupported_error(name, value, f"{reason}Supported are {', '.join(KINDS)}")
    draft.set(f"publish.{side}", kind)
    if kind == "protobuf":
        _import_nullables(draft, name)


def _import_nullables(draft: Draft, converter: str) -> None:
    """Import how Protobuf declares nullable fields, including the converter's default."""
    word = "plain"
    for setting, meaning in (("wrapper", "wrapper"), ("optional", "optional")):
        name = f"{converter}.{setting}.for.nullables"
        if rules.boolean(name, draft.properties.get(name, "false").strip()):
            word = meaning
    earlier = draft.get("publish.protobuf_nullables")
    if earlier not in (None, word):
        raise rules.unsupported_error(
            f"{converter}.{word}.for.nullables", "", "Keys and values must have the same setting"
        )
    draft.set("publish.protobuf_nullables", word)
    if word == "plain" and earlier is None:
        draft.notes.append(
            f"property {converter}.optional.for.nullables isn't set: Protobuf readers can't distinguish null "
            "from 0 or an empty string, as with Confluent's converter; see publish.protobuf_nullables"
        )


def import_schemas(draft: Draft, name: str, value: str) -> None:
    """Import whether JSON includes schemas; converters of other formats don't read it."""
    side, other = ("key", "value") if name.startswith("key") else ("value", "key")
    if not _writes_json(draft, side):
        draft.notes.append(f"property {name} is ignored: its converter doesn't write JSON with schemas")
        return
    rest = draft.properties.get(f"{other}.converter.schemas.enable", value).strip()
    same = rules.boolean(name, value) == rules.boolean(f"{other}.converter.schemas.enable", rest)
    if _writes_json(draft, other) and not same:
        raise rules.unsupported_error(name, value, "Keys and values must have the same setting")
    draft.set("publish.schemas", rules.boolean(name, value))


def _writes_json(draft: Draft, side: str) -> bool:
    """Return whether keys or values are JSON, the default, or CloudEvents."""
    kind = draft.properties.get(f"{side}.converter", "").strip()
    return kind in ("", _CLOUD_EVENTS_CONVERTER) or KINDS.get(kind) == "json"


def _is_registered(draft: Draft, name: str) -> bool:
    """Return whether the converter of a setting uses a schema registry."""
    side = name.partition(".")[0]
    return KINDS.get(draft.properties.get(f"{side}.converter", "").strip(), "") in REGISTERED


def _shared(path: str, read: Callable[[str, str], object], text: str = "") -> Rule:
    """Import a setting that is one option for keys and values."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if not _is_registered(draft, name):
            draft.notes.append(f"property {name} is ignored: its converter uses no registry")
            return
        parsed = read(name, value)
        if draft.get(path) not in (None, parsed):
            raise rules.unsupported_error(name, value, "Keys and values share one registry")
        draft.set(path, parsed)

    return rules.custom_rule(f"`{path}`{text}", apply)


def registry_addresses(name: str, value: str) -> str:
    """Return the addresses of a registry, separated by commas.

    Raises:
        ConfigurationError: One contains credentials, which are not shown.
    """
    addresses = rules.split_list(value)
    if any(parts.username or parts.password for parts in map(urlsplit, addresses)):
        raise rules.unsupported_error(
            name, "", "Credentials belong in the Airflow connection of registry.connection"
        )
    return ",".join(addresses)


def _subjects(draft: Draft, name: str, value: str) -> None:
    side = name.partition(".")[0]
    other = "value" if side == "key" else "key"
    if name.endswith(f".{other}.subject.name.strategy"):
        draft.notes.append(f"property {name} is ignored: its converter writes no {other}s")
        return
    if not _is_registered(draft, name):
        draft.notes.append(f"property {name} is ignored: its converter uses no registry")
        return
    if value not in _STRATEGIES:
        raise rules.unsupported_error(name, value, f"Supported are {', '.join(_STRATEGIES)}")
    draft.set(f"publish.registry.{side}_subjects", _STRATEGIES[value])


_REGISTRY: Final = rules.ignored("it belongs in the Airflow connection of publish.registry.connection")
_NAME_ADJUSTMENT: Final = rules.ignored("use publish.schema_names and publish.field_names")
_IN_JSON: Final = "CloudEvents and their data are written in JSON"
_CACHE: Final = rules.ignored("each process requests a schema once")
_PER_SIDE: Final[dict[str, Rule]] = {
    "": rules.custom_rule(
        "`publish.key` or `publish.value`: JsonConverter, AvroConverter, ProtobufConverter, "
        "JsonSchemaConverter, StringConverter, ByteArrayConverter, and Debezium's converters of bytes",
        import_converter,
    ),
    ".schemas.enable": rules.custom_rule("`publish.schemas`", import_schemas),
    ".decimal.format": rules.unsupported(
        "Decimals are written in base64, or according to the publish options of the source", "base64"
    ),
    ".schemas.cache.size": _CACHE,
    ".schemas.cache.config": _CACHE,
    ".max.schemas.per.subject": _CACHE,
    ".schema.registry.url": _shared("publish.registry.url", registry_addresses),
    ".schema.registry.*": _REGISTRY,
    ".basic.auth.*": _REGISTRY,
    ".bearer.auth.*": _REGISTRY,
    ".auto.register.schemas": _shared("publish.registry.auto_register", rules.boolean),
    ".normalize.schemas": _shared("publish.registry.normalize", rules.boolean),
    ".use.latest.version": rules.unsupported("Events are written with their own schema", "false"),
    ".latest.compatibility.strict": rules.ignored("it requires use.latest.version"),
    ".subject.name.strategy": rules.custom_rule(
        "`publish.registry.key_subjects`, `value_subjects`", _subjects
    ),
    ".key.subject.name.strategy": rules.custom_rule(
        "`publish.registry.key_subjects`, for a converter of keys", _subjects
    ),
    ".value.subject.name.strategy": rules.custom_rule(
        "`publish.registry.value_subjects`, for a converter of values", _subjects
    ),
    ".enhanced.avro.schema.support": rules.ignored(
        "names keep their namespaces, and events have no enumerations"
    ),
    ".connect.meta.data": rules.unsupported("Avro schemas always contain Connect metadata", "true"),
    ".enhanced.protobuf.schema.support": rules.ignored("it applies to reading Protobuf"),
    ".scrub.invalid.names": _NAME_ADJUSTMENT,
    ".json.schema.spec.version": rules.ignored("schemas are the same in drafts 4 to 7"),
    ".use.optional.for.nonrequired": rules.ignored("it applies to reading JSON Schema"),
    ".object.additional.properties": rules.unsupported("Schemas allow additional properties", "true"),
    ".optional.for.nullables": rules.handled_elsewhere("`publish.protobuf_nullables`: optional"),
    ".wrapper.for.nullables": rules.handled_elsewhere("`publish.protobuf_nullables`: wrapper"),
    ".*": rules.unsupported("This converter setting is unknown"),
}

CLOUD_EVENTS: Final[dict[str, Rule]] = {
    "value.converter": rules.custom_rule(
        f"{_PER_SIDE[''].text}; `publish.envelope: cloudevents` for CloudEventsConverter", import_converter
    ),
    "value.converter.serializer.type": rules.unsupported(_IN_JSON, "json"),
    "value.converter.data.serializer.type": rules.unsupported(_IN_JSON, "json"),
    "value.converter.json.schemas.enable": rules.custom_rule(
        "`publish.schemas`, for CloudEventsConverter", import_schemas
    ),
    "value.converter.extension.attributes.enable": rules.unsupported(
        "CloudEvents always have extension attributes", "true"
    ),
    "value.converter.metadata.source": rules.unsupported(
        "CloudEvents metadata are generated from the event",
        "value,id:generate,type:generate,traceparent:header,dataSchemaName:generate",
        "value",
    ),
}
"""Rules of ``value.converter`` for sources with CloudEvents."""
CONVERTERS: Final[dict[str, Rule]] = {
    f"{side}.converter{setting}": rule for side in ("key", "value") for setting, rule in _PER_SIDE.items()
}
"""Rules of all converter settings."""
