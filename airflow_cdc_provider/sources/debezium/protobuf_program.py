"""Protobuf schemas compiled: to programs for the kernel, and to the schema that Connect sees.

Their text is read by ``protoc`` itself, of the package grpcio-tools, within this process. The rules of types
are those of Confluent's ProtobufConverter (its class ``ProtobufData``): a field with presence may be null;
``confluent.type.Decimal``, ``google.type.Date``, ``google.type.TimeOfDay`` and ``google.protobuf.Timestamp``
are Connect's logical types, wrappers the values in them, entries (of ``map``, and Confluent's own messages
``...Entry``) are maps, enumerations text. Otherwise than there, times keep their microseconds, and the fields
of a ``oneof`` are fields like others, of which one has a value.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.debezium import protobuf_wire as kinds
from airflow_cdc_provider.sources.debezium.connect_schema import DECIMAL, VARIABLE_DECIMAL
from airflow_cdc_provider.sources.debezium.json_program import (
    LIST,
    OBJECT,
    Made,
    Part,
    Program,
    ProgramBuilder,
    as_field,
    connect,
    member_leads,
    quoted,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_FILE: Final = "schema.proto"
_NAME: Final = re.compile(r"(?!\.)[\w.-]{1,100}(/(?!\.)[\w.-]{1,100}){0,10}", re.ASCII)
_KNOWN: Final[Mapping[str, str]] = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "google/type/date.proto": """syntax = "proto3";
package google.type;
message Date { int32 year = 1; int32 month = 2; int32 day = 3; }
""",
    "google/type/timeofday.proto": """syntax = "proto3";
package google.type;
message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }
""",
}
"""Files that a registry takes as known to all and hands out with no schema."""

_OPTIONS: Final = """syntax = "proto3";
message Options { Meta field_meta = 1088; }
message Meta { map<string, string> params = 2; }
"""
"""How the options of a field look to us."""
_SCALARS: Final[Mapping[int, tuple[int, str, bytes]]] = {
    1: (kinds.DOUBLE, "double", b"0.0"),
    2: (kinds.FLOAT, "float", b"0.0"),
    3: (kinds.INT64, "int64", b"0"),
    4: (kinds.UINT64, "int64", b"0"),
    5: (kinds.INT32, "int32", b"0"),
    6: (kinds.FIXED64, "int64", b"0"),
    7: (kinds.FIXED32, "int64", b"0"),
    8: (kinds.BOOL, "boolean", b"false"),
    9: (kinds.STRING, "string", b'""'),
    12: (kinds.BYTES, "bytes", b'""'),
    13: (kinds.UINT32, "int64", b"0"),
    15: (kinds.SFIXED32, "int32", b"0"),
    16: (kinds.SFIXED64, "int64", b"0"),
    17: (kinds.SINT32, "int32", b"0"),
    18: (kinds.SINT64, "int64", b"0"),
}
"""Types as descriptors number them: kind, Connect's type, and what stands for a field that isn't there."""
_MESSAGE: Final = 11
_ENUM: Final = 14
_REPEATED: Final = 3
_TIMES: Final[Mapping[str, tuple[int, str, str]]] = {
    ".google.protobuf.Timestamp": (kinds.TIMESTAMP, "int64", "io.debezium.time.MicroTimestamp"),
    ".google.type.TimeOfDay": (kinds.TIME_OF_DAY, "int64", "io.debezium.time.MicroTime"),
    ".google.type.Date": (kinds.DATE, "int32", "org.apache.kafka.connect.data.Date"),
}
_TIME_FIELDS: Final[Mapping[int, tuple[int, ...]]] = {
    kinds.TIMESTAMP: (3, 5),
    kinds.TIME_OF_DAY: (5, 5, 5, 5),
    kinds.DATE: (5, 5, 5),
}
"""Types of their fields, numbered from 1 on: the kernel reads no others."""
_DECIMAL: Final = ".confluent.type.Decimal"
_WRAPPERS: Final = frozenset(
    f".google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def parse_protobuf(
    text: str, references: Sequence[tuple[str, str]] = ()
) -> Mapping[str, FileDescriptorProto]:
    """Have ``protoc`` read a schema.

    Args:
        text: The schema.
        references: Names and texts of files that it imports.

    Returns:
        Files by their names, the schema's own last.

    Raises:
        ValueError: It is no schema of Protobuf.
        ConfigurationError: grpcio-tools isn't installed.
    """
    try:
        import grpc_tools
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError
        from grpc_tools import protoc
    except ImportError as error:
        raise ConfigurationError(
            "schemas of Protobuf can't be read: grpcio-tools is not installed",
            remedy="pip install 'airflow-cdc-provider[protobuf]', on Spark's machines too",
        ) from error
    with tempfile.TemporaryDirectory(prefix="cdc-protobuf-") as name:
        folder = Path(name)
        for file, content in {**_KNOWN, **dict(references), _FILE: text}.items():
            if not _NAME.fullmatch(file):
                raise ValueError(f"a schema imports {file!r:.100}")
            place = folder / file
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise ValueError(f"a schema imports {file!r:.100} from a file") from None
        googles = Path(grpc_tools.__file__).parent / "_proto"
        given = ["protoc", f"-I{folder}", f"-I{googles}", "--include_imports"]
        if protoc.main([*given, f"--descriptor_set_out={folder / 'files'}", _FILE]) != 0:
            raise ValueError(
                "no schema of Protobuf: protoc refuses it, and says why in this process's output"
            )
        try:
            found = FileDescriptorSet.FromString((folder / "files").read_bytes())
        except DecodeError as error:
            raise ValueError(f"no schema of Protobuf: {error}") from None
    return {one.name: one for one in found.file}


def compile_protobuf(
    files: Mapping[str, FileDescriptorProto], path: Sequence[int]
) -> tuple[Program, Mapping[str, Any]]:
    """Compile a message of a schema.

    Args:
        files: From :func:`parse_protobuf`.
        path: Place of the message among those of its file, and then of those nested in it.

    Returns:
        The program, and the schema as Connect's JSON converter would write it.

    Raises:
        ValueError: There is no such message, or it has no columns: it nests in itself, or is too large.
    """
    own = files[_FILE]
    messages, name = own.message_type, f".{own.package}" if own.package else ""
    for place in path:
        if not 0 <= place < len(messages):
            raise ValueError(f"the schema has no message at {list(path)}")
        name += "." + messages[place].name
        messages = messages[place].nested_type
    if not path:
        raise ValueError("the message doesn't tell which one of its schema it is")
    compiler = _Compiler(files)
    made = compiler.message(name)
    return compiler.builder.done(), made.schema


class _Compiler:
    """Compiles what one message uses; each message once."""

    def __init__(self, files: Mapping[str, FileDescriptorProto]) -> None:
        self.builder = ProgramBuilder()
        self._messages: dict[str, tuple[DescriptorProto, bool]] = {}
        self._enums: dict[str, Any] = {}
        self._made: dict[str, Made | None] = {}
        self._entries: dict[str, Made | None] = {}
        """Entries of maps: such a message may stand alone, too, and is written otherwise then."""
        for file in files.values():
            place = f".{file.package}" if file.package else ""
            self._enums |= {f"{place}.{one.name}": one for one in file.enum_type}
            for one in file.message_type:
                self._add(one, place, has_presence=file.syntax != "proto3")

    def _add(self, message: DescriptorProto, place: str, *, has_presence: bool) -> None:
        name = f"{place}.{message.name}"
        self._messages[name] = message, has_presence
        self._enums |= {f"{name}.{one.name}": one for one in message.enum_type}
        for one in message.nested_type:
            self._add(one, name, has_presence=has_presence)

    def message(self, name: str) -> Made:
        """Compile a message and what stands inside it."""
        if name in self._made:
            made = self._made[name]
            if made is None:
                raise ValueError(f"message {name} stands inside itself")
            return made
        self._made[name] = None
        made = self._message(name, self._messages[name][0])
        self._made[name] = made
        return made

    def _message(self, name: str, message: DescriptorProto) -> Made:
        if name in _TIMES:
            kind, plain, logical = _TIMES[name]
            found = [(one.number, one.type, one.label != _REPEATED) for one in message.field]
            if found != [(number, each, True) for number, each in enumerate(_TIME_FIELDS[kind], 1)]:
                raise ValueError(f"message {name} has other fields than it is known by")
            parts = [Part(self._scalar(one.type), b"", one.number) for one in message.field]
            return self.builder.add(kind, connect(plain, logical, version=1), 0, parts)
        if name in _WRAPPERS:
            (field,) = message.field
            inside = self._scalar(field.type)
            part = Part(inside, b"", 1, absent=_SCALARS[field.type][2])
            return self.builder.add(kinds.MESSAGE, inside.schema, 0, [part])
        leads = member_leads([one.name for one in message.field])
        made = [self._field(name, one, lead) for one, lead in zip(message.field, leads, strict=True)]
        fields = [as_field(schema, one.name) for (_, schema), one in zip(made, message.field, strict=True)]
        shown = connect("struct", name[1:], fields=fields)
        return self.builder.add(kinds.MESSAGE, shown, ord("}"), [part for part, _ in made])

    def _field(self, owner: str, field: FieldDescriptorProto, lead: bytes) -> tuple[Part, Mapping[str, Any]]:
        """Compile a field; return it with Connect's schema."""
        parameters = _parameters(field)
        if field.label == _REPEATED:
            if field.type == _MESSAGE and self._is_entry(field.type_name):
                return self._map(field, lead)
            inside = self._value(field, parameters)
            part = Part(inside, lead, field.number, LIST)
            return part, connect("array", items=inside.schema)
        inside = self._value(field, parameters)
        told = (
            field.type == _MESSAGE
            or self._messages[owner][1]
            or field.proto3_optional
            or field.HasField("oneof_index")
        )
        choice = 0
        if field.HasField("oneof_index") and not field.proto3_optional:
            choice = field.oneof_index + 1
        absent = b"null" if told else self._default(field)
        shown = {**inside.schema, "optional": told}
        return Part(inside, lead, field.number, choice=choice, absent=absent), shown

    def _value(self, field: FieldDescriptorProto, parameters: Mapping[str, str]) -> Made:
        """Compile a field's values."""
        if field.type == _MESSAGE:
            if field.type_name == _DECIMAL:
                return self._decimal(parameters)
            return self.message(field.type_name)
        if field.type == _ENUM:
            values = self._enums[field.type_name].value
            names = [Part(None, quoted(one.name), one.number) for one in values]
            return self.builder.add(kinds.ENUM, connect("string"), 0, names)
        if field.type not in _SCALARS:
            raise ValueError(f"field {field.name} is a group")
        return self._scalar(field.type, parameters.get("connect.type", ""))

    def _scalar(self, number: int, connect_type: str = "") -> Made:
        kind, plain, _ = _SCALARS[number]
        return self.builder.add(kind, connect(connect_type or plain))

    def _default(self, field: FieldDescriptorProto) -> bytes:
        if field.type == _ENUM:
            return quoted(self._enums[field.type_name].value[0].name)
        return _SCALARS[field.type][2]

    def _decimal(self, parameters: Mapping[str, str]) -> Made:
        """Compile a decimal: of the scale that the schema tells, else with its own."""
        numbers = [self._scalar(12), self._scalar(13), self._scalar(5)]
        if "scale" not in parameters:
            leads, absent = (b'{"value":', b',"precision":', b',"scale":'), (b'""', b"0", b"0")
            parts = [
                Part(made, lead, number, absent=text)
                for number, (made, lead, text) in enumerate(zip(numbers, leads, absent, strict=True), 1)
            ]
            fields = [as_field(connect("int32"), "scale"), as_field(connect("bytes"), "value")]
            return self.builder.add(
                kinds.MESSAGE, connect("struct", VARIABLE_DECIMAL, version=1, fields=fields), ord("}"), parts
            )
        told = {"scale": parameters["scale"]}
        if "precision" in parameters:
            told["connect.decimal.precision"] = parameters["precision"]
        parts = [Part(made, b"", number) for number, made in enumerate(numbers, 1)]
        shown = connect("bytes", DECIMAL, version=1, parameters=told)
        return self.builder.add(kinds.DECIMAL, shown, int(parameters["scale"]), parts)

    def _is_entry(self, name: str) -> bool:
        message = self._messages[name][0]
        if message.options.map_entry:
            return True
        numbers = [(one.name, one.number) for one in message.field]
        return message.name.endswith("Entry") and numbers == [("key", 1), ("value", 2)]

    def _map(self, field: FieldDescriptorProto, lead: bytes) -> tuple[Part, Mapping[str, Any]]:
        """Compile a map: an object where keys are text, else a list of pairs."""
        key, value = self._messages[field.type_name][0].field
        as_object = key.type == 9
        key_lead, value_lead = (b"", b":") if as_object else (b"[", b",")
        if field.type_name not in self._entries:
            self._entries[field.type_name] = None
            (key_part, key_schema), (value_part, value_schema) = (
                self._field(field.type_name, one, own) for one, own in ((key, key_lead), (value, value_lead))
            )
            if as_object:  # no key is null
                key_part = Part(key_part.made, b"", 1, absent=b'""')
            shown = connect("map", keys=key_schema, values=value_schema)
            close = 0 if as_object else ord("]")
            self._entries[field.type_name] = self.builder.add(
                kinds.MESSAGE, shown, close, [key_part, value_part]
            )
        made = self._entries[field.type_name]
        if made is None:
            raise ValueError(f"message {field.type_name} stands inside itself")
        return Part(made, lead, field.number, OBJECT if as_object else LIST), made.schema


def _parameters(field: FieldDescriptorProto) -> dict[str, str]:
    """Return the parameters of a field's option ``confluent.field_meta``."""
    if not field.HasField("options"):
        return {}
    return dict(_options_class().FromString(field.options.SerializeToString()).field_meta.params)


@cache
def _options_class() -> Any:
    """Return a class that knows the option, whatever else of Protobuf this process has imported."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in parse_protobuf(_OPTIONS).values():
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Options"))
