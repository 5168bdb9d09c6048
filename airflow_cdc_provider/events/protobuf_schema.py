"""Protobuf schemas of keys and values.

They are derived from Connect schemas by the rules of Confluent's ProtobufConverter (class ``ProtobufData``),
in the format of its ``ProtobufSchema``:

* proto3; the message has the name of the schema, the part before the last dot is its package; without a name
it is
  ``ConnectDefault1``;
* a nested struct is a nested message with the last part of its name, plus ``Message`` if a field has the same
  name;
* a map is a repeated message ``ConnectDefault1Entry`` (numbered through the file) with ``key`` and ``value``;
* Connect's Decimal, Date, Time and Timestamp are ``confluent.type.Decimal``, ``google.type.Date``,
  ``google.type.TimeOfDay`` and ``google.protobuf.Timestamp``; all others map by their type;
* a key or value that is not a struct is a message of ``google/protobuf/wrappers.proto``.

Differences: if two structs in a message have the same name, like columns of Cassandra, the second is named
    ``<name>_<field>``, where Confluent's converter fails; and the imports of field options are included, so
    that ``protoc`` can parse the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.exceptions import ConfigurationError

_OF_OTHERS: Final = re.compile(r"(?<![\w.])(google|confluent)\.")
"""Names that are looked for in the file's own messages and packages first, if they don't begin with a dot."""
Nullables = Literal["plain", "optional", "wrapper"]
"""Declaration of nullable fields.

``plain``     no marker: null can't be distinguished from 0, false or an empty string;
``optional``  with proto3's ``optional``;
``wrapper``   as a message of ``google/protobuf/wrappers.proto``.
"""

LOGICAL: Final[Mapping[str, tuple[str, str]]] = {
    "org.apache.kafka.connect.data.Decimal": ("confluent.type.Decimal", "confluent/type/decimal.proto"),
    "org.apache.kafka.connect.data.Date": ("google.type.Date", "google/type/date.proto"),
    "org.apache.kafka.connect.data.Time": ("google.type.TimeOfDay", "google/type/timeofday.proto"),
    "org.apache.kafka.connect.data.Timestamp": (
        "google.protobuf.Timestamp",
        "google/protobuf/timestamp.proto",
    ),
}
"""Connect's logical types: message and file."""

SCALARS: Final[Mapping[str, str]] = {
    "boolean": "bool",
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
"""Scalar types by Connect type."""
_WRAPPERS: Final[Mapping[str, str]] = {
    "double": "DoubleValue",
    "float": "FloatValue",
    "int64": "Int64Value",
    "uint64": "UInt64Value",
    "int32": "Int32Value",
    "uint32": "UInt32Value",
    "bool": "BoolValue",
    "string": "StringValue",
    "bytes": "BytesValue",
}
"""Wrappers in the order of their file."""
_WRAPPERS_FILE: Final = "google/protobuf/wrappers.proto"
_META_FILE: Final = "confluent/meta.proto"
_SHARED_JSON_NAMES: Final = "option deprecated_legacy_json_field_conflicts = true;"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class ProtobufField:
    """One field of a message.

    Args:
        name: Its name.
        number: Its number.
        type: Scalar type, or the name of a message.
        schema: Schema of its values, or of the elements of an array.
        repeated: Whether it is an array or a map.
        optional: Whether it is declared ``optional``.
        wrapped: Whether its values are wrapper messages.
        message: Its message type; None for scalars and imported types.
        parameters: Parameters of its option ``confluent.field_meta``.
    """

    name: str
    number: int
    type: str
    schema: ConnectSchema
    repeated: bool = False
    optional: bool = False
    wrapped: bool = False
    message: ProtobufMessage | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProtobufMessage:
    """One message.

    Args:
        name: Its name, without package.
        fields: In order of their numbers.
        nested: Nested messages.
    """

    name: str
    fields: tuple[ProtobufField, ...] = ()
    nested: tuple[ProtobufMessage, ...] = ()


@dataclass(frozen=True)
class ProtobufSchema:
    """A file with the message of rows.

    Args:
        package: Its package, empty for none.
        message: The message.
        imports: Imported files, in order of use.
        indexes: Message indexes, outermost first.
        wrappers: Whether the file is that of the wrappers.
    """

    package: str
    message: ProtobufMessage
    imports: tuple[str, ...] = ()
    indexes: tuple[int, ...] = (0,)
    wrappers: bool = False

    @property
    def full_name(self) -> str:
        """Name of the message with its package."""
        return f"{self.package}.{self.message.name}" if self.package else self.message.name

    @cached_property
    def text(self) -> str:
        """The file's text."""
        lines = ['syntax = "proto3";']
        if self.package:
            lines.append(f"package {self.package};")
        if self.imports:
            lines += ["", *(f'import "{file}";' for file in self.imports)]
        if self.wrappers:
            lines += ["", *_WRAPPERS_OPTIONS]
            messages = [_wrapper(kind) for kind in _WRAPPERS]
        else:
            messages = [self.message]
        body = [line for message in messages for line in _lines(message)]
        scopes = {line.split()[1] for line in body if line.lstrip().startswith("message ")}
        if {*scopes, *self.package.split(".")} & {"google", "confluent"}:
            body = [_OF_OTHERS.sub(r".\g<0>", line) for line in body]
        return "\n".join([*lines, "", *body]) + "\n"


def protobuf_of_connect(schema: ConnectSchema, nullables: Nullables) -> ProtobufSchema:
    """Return the Protobuf schema of a Connect schema.

    Args:
        schema: Schema of the rows.
        nullables: Declaration of nullable fields.

    Raises:
        ConfigurationError: Protobuf has no such type or name.
    """
    if schema.type in ("array", "map"):
        raise ConfigurationError(
            f"Protobuf has no message that is a {schema.type}", expected="a struct or a single value"
        )
    if schema.type != "struct":
        kind = SCALARS[schema.type]
        index = list(_WRAPPERS).index(kind)
        message = _wrapper(kind, replace(schema, optional=False, default=None, name=""))
        return ProtobufSchema("google.protobuf", message, indexes=(index,), wrappers=True)
    builder = _Builder(nullables)
    package, _, name = builder.named(schema.name).rpartition(".")
    for part in filter(None, package.split(".")):
        _check_name(part)
    message = builder.message(name, schema)
    return ProtobufSchema(package, message, tuple(builder.imports))


class _Builder:
    """Builds the messages of one file."""

    def __init__(self, nullables: Nullables) -> None:
        self._nullables = nullables
        self._unnamed = 0
        self.imports: dict[str, None] = {}

    def named(self, name: str) -> str:
        """Return the name of a schema, a generated one if it has none."""
        if name:
            return name
        self._unnamed += 1
        return f"ConnectDefault{self._unnamed}"

    def message(self, name: str, schema: ConnectSchema) -> ProtobufMessage:
        """Build the message of a struct."""
        _check_name(name)
        known = _Nested(name, {n for n, _ in schema.fields})
        fields = tuple(self._field(n, i, s, known) for i, (n, s) in enumerate(schema.fields, 1))
        return ProtobufMessage(name, fields, tuple(known.messages.values()))

    def _field(self, name: str, number: int, schema: ConnectSchema, known: _Nested) -> ProtobufField:
        _check_name(name)
        repeated = schema.type == "array"
        element = schema.items if schema.type == "array" and schema.items else schema
        if repeated and element.type in ("array", "map"):
            raise ConfigurationError(
                f"field {name!r} is an array of {element.type}s, which Protobuf doesn't support",
                remedy="exclude the column (publish.exclude_columns), or use another converter",
            )
        parameters: dict[str, str] = {}
        if element.name in LOGICAL:
            kind, file = LOGICAL[element.name]
            self.imports[file] = None
            message = None
            if kind == "confluent.type.Decimal":
                parameters = {k: v for k, v in (("scale", element.parameters.get("scale", "")),) if v}
            optional = self._nullables == "optional" and schema.optional and not repeated
            return self._with(
                ProtobufField(
                    name=name,
                    number=number,
                    type=kind,
                    schema=element,
                    repeated=repeated,
                    optional=optional,
                    wrapped=False,
                    message=message,
                    parameters=parameters,
                )
            )
        if element.type == "struct":
            built = self.message(self.named(element.name).rpartition(".")[2], element)
            message = known.add(built, name)
            optional = self._nullables == "optional" and schema.optional and not repeated
            return ProtobufField(
                name=name,
                number=number,
                type=message.name,
                schema=element,
                repeated=repeated,
                optional=optional,
                message=message,
            )
        if element.type == "map":
            message = known.add(self._entry(element), name)
            return ProtobufField(
                name=name, number=number, type=message.name, schema=element, repeated=True, message=message
            )
        kind = SCALARS[element.type]
        if element.type in ("int8", "int16"):
            parameters = {"connect.type": element.type}
        wrapped = self._nullables == "wrapper" and element.optional
        if wrapped:
            self.imports[_WRAPPERS_FILE] = None
        optional = self._nullables == "optional" and schema.optional and not repeated
        type_name = f"google.protobuf.{_WRAPPERS[kind]}" if wrapped else kind
        return self._with(
            ProtobufField(
                name=name,
                number=number,
                type=type_name,
                schema=element,
                repeated=repeated,
                optional=optional,
                wrapped=wrapped,
                message=None,
                parameters=parameters,
            )
        )

    def _entry(self, schema: ConnectSchema) -> ProtobufMessage:
        assert schema.keys
        assert schema.items
        name = self.named(schema.name).rpartition(".")[2]
        if "_" in name:
            name = "".join(part.capitalize() for part in name.split("_"))
        name += "Entry"
        _check_name(name)
        known = _Nested(name, {"key", "value"})
        key = self._field("key", 1, replace(schema.keys, optional=False), known)
        fields = (key, self._field("value", 2, schema.items, known))
        return ProtobufMessage(name, fields, tuple(known.messages.values()))

    def _with(self, built: ProtobufField) -> ProtobufField:
        if built.parameters:
            self.imports[_META_FILE] = None
        return built


class _Nested:
    """Nested messages of a message."""

    def __init__(self, parent: str, fields: set[str]) -> None:
        self._taken = fields | {parent}
        self.messages: dict[str, ProtobufMessage] = {}

    def add(self, message: ProtobufMessage, field_name: str) -> ProtobufMessage:
        """Define a message, renamed if its name is taken; equal messages are defined once."""
        if message.name in self._taken:
            message = replace(message, name=message.name + "Message")
        for name in (message.name, f"{message.name}_{field_name}", f"{message.name}_{field_name}_"):
            renamed = replace(message, name=name)
            known = self.messages.get(name)
            if name not in self._taken and known in (None, renamed):
                self.messages[name] = renamed
                return renamed
        raise ConfigurationError(f"no unused name for the message of field {field_name!r}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a valid Protobuf name",
            expected="letters, digits and _, not starting with a digit",
            remedy="set publish.schema_names and publish.field_names to auto, avro or avro_unicode",
        )


def _lines(message: ProtobufMessage) -> list[str]:
    """Format a message, one field per line, with empty lines between parts."""
    if not message.fields and not message.nested:
        return [f"message {message.name} {{}}"]
    fields = [f"  {line}" for one in message.fields for line in _field_lines(one)]
    nested = [f"  {line}" for one in message.nested for line in _lines(one)]
    between = [""] if fields and nested else []
    options = [f"  {_SHARED_JSON_NAMES}"] if _share_json_names(message) else []
    return [f"message {message.name} {{", *options, *fields, *between, *nested, "}"]


def _share_json_names(message: ProtobufMessage) -> bool:
    """Return whether two fields have the same JSON name, which Protobuf rejects: fooBar and foo_bar."""
    names = [re.sub(r"_+(.?)", lambda found: found[1].upper(), one.name) for one in message.fields]
    return len(set(names)) < len(names)


def _field_lines(one: ProtobufField) -> list[str]:
    label = "repeated " if one.repeated else "optional " if one.optional else ""
    text = f"{label}{one.type} {one.name} = {one.number}"
    if not one.parameters:
        return [text + ";"]
    lines = [f"{text} [(confluent.field_meta) = {{", "  params: ["]
    for number, (key, value) in enumerate(one.parameters.items()):
        pair = [f'key: "{key}"', f'value: "{value}"']
        first, second = reversed(pair) if key in ("scale", "precision") else pair
        end = "," if number + 1 < len(one.parameters) else ""
        lines += ["    {", f"      {first},", f"      {second}", f"    }}{end}"]
    return [*lines, "  ]", "}];"]


def _wrapper(kind: str, schema: ConnectSchema | None = None) -> ProtobufMessage:
    own = ProtobufField(name="value", number=1, type=kind, schema=schema or ConnectSchema("string"))
    return ProtobufMessage(_WRAPPERS[kind], (own,))


_WRAPPERS_OPTIONS: Final = (
    'option java_package = "com.google.protobuf";',
    'option java_outer_classname = "WrappersProto";',
    "option java_multiple_files = true;",
    'option go_package = "google.golang.org/protobuf/types/known/wrapperspb";',
    "option cc_enable_arenas = true;",
    'option objc_class_prefix = "GPB";',
    'option csharp_namespace = "Google.Protobuf.WellKnownTypes";',
)
