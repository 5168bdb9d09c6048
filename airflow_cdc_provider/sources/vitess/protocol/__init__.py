"""Vitess's own protocol definitions, and the messages that this package sends or parses.

The ``.proto`` files in the project's ``tools/vitess_protocol`` are unchanged copies of those of Vitess
v0.24.2 that VTGate's service needs (Apache License 2.0, header kept); ``vtctld.proto`` is our own and has
what one call of vtctld needs. ``make protocol`` compiles them to ``vitess.descriptors``, which is read into a
separate descriptor pool: another package may have messages of the same names, and there is no generated code
that depends on the release of protobuf's runtime.

Only small messages are parsed this way: requests, responses of Execute, fields, positions. Rows are read as
bytes (:mod:`..wire`).

``service(name)`` is the full name of a method of VTGate as gRPC calls it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from airflow_cdc_provider.exceptions import CorruptInput


def _read_pool() -> DescriptorPool:
    pool = DescriptorPool()
    found = FileDescriptorSet.FromString(files(__name__).joinpath("vitess.descriptors").read_bytes())
    for file in found.file:
        pool.Add(file)
    return pool


_POOL: Final = _read_pool()


def _message(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(name))


VStreamRequest: Final = _message("vtgate.VStreamRequest")
VStreamResponse: Final = _message("vtgate.VStreamResponse")
ExecuteRequest: Final = _message("vtgate.ExecuteRequest")
ExecuteResponse: Final = _message("vtgate.ExecuteResponse")
VGtid: Final = _message("binlogdata.VGtid")
VEvent: Final = _message("binlogdata.VEvent")
FieldEvent: Final = _message("binlogdata.FieldEvent")
RowEvent: Final = _message("binlogdata.RowEvent")
RowChange: Final = _message("binlogdata.RowChange")
Journal: Final = _message("binlogdata.Journal")
Filter: Final = _message("binlogdata.Filter")
Field: Final = _message("query.Field")
Row: Final = _message("query.Row")
CallerID: Final = _message("vtrpc.CallerID")
Tablet: Final = _message("topodata.Tablet")
ShardReplicationPositionsRequest: Final = _message("vtctldata.ShardReplicationPositionsRequest")
ShardReplicationPositionsResponse: Final = _message("vtctldata.ShardReplicationPositionsResponse")

TYPES: Final[dict[int, str]] = {
    value.number: value.name for value in _POOL.FindEnumTypeByName("query.Type").values
}
"""Names of MySQL's types by number."""

TABLET_TYPES: Final[dict[str, int]] = {
    value.name: value.number for value in _POOL.FindEnumTypeByName("topodata.TabletType").values
}
"""Numbers of tablet types by name."""

EVENT_TYPES: Final[dict[str, int]] = {
    value.name: value.number for value in _POOL.FindEnumTypeByName("binlogdata.VEventType").values
}
"""Numbers of kinds of events by name."""


def parse(kind: Any, message: bytes) -> Any:
    """Parse a message.

    Raises:
        CorruptInput: It is invalid.
    """
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise CorruptInput(
            "a message of Vitess can't be parsed", expected=kind.DESCRIPTOR.full_name, found=str(error)
        ) from error


def service(name: str) -> str:
    """Return the full name of a method: ``VStream``, ``Execute``."""
    return f"/vtgateservice.Vitess/{name}"
