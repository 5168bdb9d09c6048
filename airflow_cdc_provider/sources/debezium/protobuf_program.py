"""Compiles Protobuf schemas to programs for the kernel and to the Connect schema.

``protoc`` of the package grpcio-tools parses their text, in a process of its own: it is C++ that a schema can
abort, or keep busy.

The type rules are those of Confluent's ProtobufConverter (class ``ProtobufData``): a field with presence may
be null; ``confluent.type.Decimal``, ``google.type.Date``, ``google.type.TimeOfDay`` and
``google.protobuf.Timestamp`` are Connect's logical types, wrappers become their values, entries (of ``map``,
and Confluent's messages ``...Entry``) become maps, enumerations become text. In contrast to Confluent's
converter, times keep their microseconds, and the fields of a ``oneof`` are normal fields, of which one has a
value.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import from_extra
from airflow_cdc_provider.sources.debezium import protobuf_wire as kinds
from airflow_cdc_provider.sources.debezium.connect_schema import DECIMAL, VARIABLE_DECIMAL
from airflow_cdc_provider.sources.debezium.json_program import (
    LIST,
    OBJECT,
    CompiledNode,
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
"""Well-known files that a registry doesn't return as references of a schema."""

_OPTIONS: Final = """syntax = "proto3";
message Options { Meta field_meta = 1088; }
message Meta { map<string, string> params = 2; }
"""
"""Schema to parse the options of a field."""
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
"""By type number in descriptors: kind, Connect type, and the default of a missing field."""
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
"""Types of their fields, numbered from 1: the kernel supports no others."""
_DECIMAL: Final = ".confluent.type.Decimal"
_WRAPPERS: Final = frozenset(
    f".google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


_PROTOC: Final = """
import resource, sys
for name, most in ("AS", 1 << 30), ("CPU", 5), ("FSIZE", 1 << 24), ("CORE", 0):
    kind = getattr(resource, "RLIMIT_" + name)
    most = min(most, resource.getrlimit(kind)[1] & sys.maxsize)
    resource.setrlimit(kind, (most, most))
sys.path.append(sys.argv[1])
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", *sys.argv[2:]]))
"""
_PROTOC_SECONDS: Final = 120
"""Its 5 s of CPU time, on a machine that has little to spare."""

_MOST_NAMES: Final = 1 << 25
"""Characters of the full names of all messages: a long name is part of that of each message inside."""


def parse_protobuf(
    text: str, references: Sequence[tuple[str, str]] = ()
) -> Mapping[str, FileDescriptorProto]:
    """Parse a schema with ``protoc``.

    Args:
        text: The schema.
        references: Names and texts of files that it imports.

    Returns:
        Files by name; the schema's own file is last.

    Raises:
        ValueError: It isn't a valid Protobuf schema.
        ConfigurationError: grpcio-tools isn't installed.
    """
    from google.protobuf.message import DecodeError

    with from_extra("protobuf"):
        import grpc_tools
    with tempfile.TemporaryDirectory(prefix="cdc-protobuf-") as name:
        folder = Path(name, "schemas")
        for file, content in {**_KNOWN, **dict(references), _FILE: text}.items():
            if not _NAME.fullmatch(file):
                raise ValueError(f"a schema imports {file!r:.100}")
            target = folder / file
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise ValueError(f"a schema imports {file!r:.100} from a file") from None
        _run_protoc(folder, Path(grpc_tools.__file__).parent)
        try:
            found = _descriptors().FromString((folder.parent / "files").read_bytes())
        except DecodeError as error:
            raise ValueError(f"not a valid Protobuf schema: {error}") from None
    return {one.name: one for one in found.file}


@cache
def _descriptors() -> Any:
    """Return ``FileDescriptorSet`` without the extensions that libraries registered in this process."""
    from google.protobuf.descriptor_pb2 import DESCRIPTOR
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    pool.AddSerializedFile(DESCRIPTOR.serialized_pb)
    return GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FileDescriptorSet"))


def _run_protoc(folder: Path, package: Path) -> None:
    """Compile the schema in a folder to the file ``files`` next to it, in a process with limits."""
    program = [sys.executable, "-I", "-c", _PROTOC, str(package.parent)]
    includes = ["-I.", f"-I{package / '_proto'}", "--include_imports"]
    with (folder.parent / "output").open("w+b") as output:
        try:
            ended = subprocess.run(
                [*program, *includes, "--descriptor_set_out=../files", _FILE],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_PROTOC_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            ended = -signal.SIGKILL
        if ended:
            output.seek(0)
            reason = output.read(200).decode("ascii", "replace")
            raise ValueError(f"not a valid Protobuf schema: protoc ends with {ended:d}: {reason}")


def compile_protobuf(
    files: Mapping[str, FileDescriptorProto], path: Sequence[int]
) -> tuple[Program, Mapping[str, Any]]:
    """Compile a message of a schema.

    Args:
        files: From :func:`parse_protobuf`.
        path: Index of the message type in its file, followed by the indexes of nested types.

    Returns:
        The program, and the schema in the format of Connect's JSON converter.

    Raises:
        ValueError: There is no such message type, or it has no columns: it is recursive, or too large.
    """
    own = files[_FILE]
    messages, name = own.message_type, f".{own.package}" if own.package else ""
    for index in path:
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message at {list(path)}")
        name += "." + messages[index].name
        messages = messages[index].nested_type
    if not path:
        raise ValueError("the message doesn't specify its type in the schema")
    compiler = _Compiler(files)
    compiled = compiler.message(name)
    return compiler.builder.done(), compiled.schema


class _Compiler:
    """Compiles a message type and the types that it uses; each type once."""

    def __init__(self, files: Mapping[str, FileDescriptorProto]) -> None:
        self.builder = ProgramBuilder()
        self._names_left = _MOST_NAMES
        self._messages: dict[str, tuple[DescriptorProto, bool]] = {}
        self._enums: dict[str, Any] = {}
        self._compiled_messages: dict[str, CompiledNode | None] = {}
        self._entries: dict[str, CompiledNode | None] = {}
        """Map entries: such a message may also be used as a plain field, and is then compiled differently."""
        for file in files.values():
            scope = f".{file.package}" if file.package else ""
            self._enums |= {f"{scope}.{one.name}": one for one in file.enum_type}
            for one in file.message_type:
                self._add(one, scope, has_presence=file.syntax != "proto3")

    def _add(self, message: DescriptorProto, scope: str, *, has_presence: bool) -> None:
        name = f"{scope}.{message.name}"
        self._names_left -= len(name)
        if self._names_left < 0:
            raise ValueError("the full names of its messages are too long")
        self._messages[name] = message, has_presence
        self._enums |= {f"{name}.{one.name}": one for one in message.enum_type}
        for one in message.nested_type:
            self._add(one, name, has_presence=has_presence)

    def message(self, name: str) -> CompiledNode:
        """Compile a message type and its nested types."""
        if name in self._compiled_messages:
            compiled = self._compiled_messages[name]
            if compiled is None:
                raise ValueError(f"message {name} is recursive")
            return compiled
        self._compiled_messages[name] = None
        compiled = self._message(name, self._messages[name][0])
        self._compiled_messages[name] = compiled
        return compiled

    def _message(self, name: str, message: DescriptorProto) -> CompiledNode:
        if name in _TIMES:
            kind, plain, logical = _TIMES[name]
            found = [(one.number, one.type, one.label != _REPEATED) for one in message.field]
            if found != [(number, each, True) for number, each in enumerate(_TIME_FIELDS[kind], 1)]:
                raise ValueError(f"message {name} doesn't have the fields of the well-known type")
            parts = [Part(self._scalar(one.type), b"", one.number) for one in message.field]
            return self.builder.add(kind, connect(plain, logical, version=1), 0, parts)
        if name in _WRAPPERS:
            (field,) = message.field
            inside = self._scalar(field.type)
            part = Part(inside, b"", 1, absent=_SCALARS[field.type][2])
            return self.builder.add(kinds.MESSAGE, inside.schema, 0, [part])
        leads = member_leads([one.name for one in message.field])
        compiled = [self._field(name, one, lead) for one, lead in zip(message.field, leads, strict=True)]
        fields = [
            as_field(schema, one.name) for (_, schema), one in zip(compiled, message.field, strict=True)
        ]
        shown = connect("struct", name[1:], fields=fields)
        return self.builder.add(kinds.MESSAGE, shown, ord("}"), [part for part, _ in compiled])

    def _field(self, owner: str, field: FieldDescriptorProto, lead: bytes) -> tuple[Part, Mapping[str, Any]]:
        """Compile a field; return it with its Connect schema."""
        parameters = _parameters(field)
        if field.label == _REPEATED:
            if field.type == _MESSAGE and self._is_entry(field.type_name):
                return self._map(field, lead)
            inside = self._value(field, parameters)
            part = Part(inside, lead, field.number, LIST)
            return part, connect("array", items=inside.schema)
        inside = self._value(field, parameters)
        has_presence_value = (
            field.type == _MESSAGE
            or self._messages[owner][1]
            or field.proto3_optional
            or field.HasField("oneof_index")
        )
        choice = 0
        if field.HasField("oneof_index") and not field.proto3_optional:
            choice = field.oneof_index + 1
        absent = b"null" if has_presence_value else self._default(field)
        shown = {**inside.schema, "optional": has_presence_value}
        return Part(inside, lead, field.number, choice=choice, absent=absent), shown

    def _value(self, field: FieldDescriptorProto, parameters: Mapping[str, str]) -> CompiledNode:
        """Compile the values of a field."""
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

    def _scalar(self, number: int, connect_type: str = "") -> CompiledNode:
        kind, plain, _ = _SCALARS[number]
        return self.builder.add(kind, connect(connect_type or plain))

    def _default(self, field: FieldDescriptorProto) -> bytes:
        if field.type == _ENUM:
            return quoted(self._enums[field.type_name].value[0].name)
        return _SCALARS[field.type][2]

    def _decimal(self, parameters: Mapping[str, str]) -> CompiledNode:
        """Compile a decimal: with the scale in the schema, else with a scale per value."""
        numbers = [self._scalar(12), self._scalar(13), self._scalar(5)]
        if "scale" not in parameters:
            leads, absent = (b'{"value":', b',"precision":', b',"scale":'), (b'""', b"0", b"0")
            parts = [
                Part(compiled, lead, number, absent=text)
                for number, (compiled, lead, text) in enumerate(zip(numbers, leads, absent, strict=True), 1)
            ]
            fields = [as_field(connect("int32"), "scale"), as_field(connect("bytes"), "value")]
            return self.builder.add(
                kinds.MESSAGE, connect("struct", VARIABLE_DECIMAL, version=1, fields=fields), ord("}"), parts
            )
        decimal_parameters = {"scale": parameters["scale"]}
        if "precision" in parameters:
            decimal_parameters["connect.decimal.precision"] = parameters["precision"]
        parts = [Part(compiled, b"", number) for number, compiled in enumerate(numbers, 1)]
        shown = connect("bytes", DECIMAL, version=1, parameters=decimal_parameters)
        return self.builder.add(kinds.DECIMAL, shown, int(parameters["scale"]), parts)

    def _is_entry(self, name: str) -> bool:
        message = self._messages[name][0]
        if message.options.map_entry:
            return True
        numbers = [(one.name, one.number) for one in message.field]
        return message.name.endswith("Entry") and numbers == [("key", 1), ("value", 2)]

    def _map(self, field: FieldDescriptorProto, lead: bytes) -> tuple[Part, Mapping[str, Any]]:
        """Compile a map: an object if keys are text, else a list of pairs."""
        key, value = self._messages[field.type_name][0].field
        as_object = key.type == 9
        key_lead, value_lead = (b"", b":") if as_object else (b"[", b",")
        if field.type_name not in self._entries:
            self._entries[field.type_name] = None
            (key_part, key_schema), (value_part, value_schema) = (
                self._field(field.type_name, one, own) for one, own in ((key, key_lead), (value, value_lead))
            )
            if as_object:  # keys are never null
                key_part = Part(key_part.child, b"", 1, absent=b'""')
            shown = connect("map", keys=key_schema, values=value_schema)
            close = 0 if as_object else ord("]")
            self._entries[field.type_name] = self.builder.add(
                kinds.MESSAGE, shown, close, [key_part, value_part]
            )
        compiled = self._entries[field.type_name]
        if compiled is None:
            raise ValueError(f"message {field.type_name} is recursive")
        return Part(compiled, lead, field.number, OBJECT if as_object else LIST), compiled.schema


def _parameters(field: FieldDescriptorProto) -> dict[str, str]:
    """Return the parameters of a field's option ``confluent.field_meta``."""
    from google.protobuf.message import DecodeError

    try:
        return dict(_options_class().FromString(field.options.SerializeToString()).field_meta.params)
    except DecodeError:  # another option of that number
        return {}


@cache
def _options_class() -> Any:
    """Return a class with the option, independent of other Protobuf imports of this process."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in parse_protobuf(_OPTIONS).values():
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Options"))
