"""Record what Kafka Connect's and Debezium's own transforms make of records: what ours are compared with.

Run it when a case is added, or for another release::

    python -m tools.record_transforms

It compiles ``ConnectTransforms.java`` against the jars of Debezium, downloaded if need be, and writes
``tests/fixtures/transforms/connect.json``: per case the properties, the records, and what came of each.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from server_kit.jars import debezium_mongodb_jars
from server_kit.programs import find_java, run_program

_SOURCE: Final = Path(__file__).with_name("ConnectTransforms.java")
FIXTURE: Final = Path(__file__).parents[1] / "tests/fixtures/transforms/connect.json"

_CONNECT: Final = "org.apache.kafka.connect.transforms."
_DEBEZIUM: Final = "io.debezium.transforms."
_LOGICAL: Final = "org.apache.kafka.connect.data."


def _field(name: str, kind: str, /, *, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": optional, **more, "field": name}


def _struct(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": list(fields),
        "optional": False,
        **({"name": name} if name else {}),
        **more,
    }


_ROW: Final = _struct(
    "shop.rows.Value",
    _field("i8", "int8"),
    _field("i16", "int16"),
    _field("i32", "int32", optional=True, default=7),
    _field("i64", "int64"),
    _field("f32", "float"),
    _field("f64", "double", optional=True),
    _field("yes", "boolean", optional=True),
    _field("text", "string", optional=True),
    _field("number", "string", optional=True),
    _field("day", "string", optional=True),
    _field("data", "bytes", optional=True),
    {**_field("list", "array", optional=True), "items": {"type": "string", "optional": True}},
    {
        **_field("map", "map", optional=True),
        "keys": {"type": "string", "optional": False},
        "values": {"type": "int32", "optional": True},
    },
    {
        **_struct("shop.Place", _field("city", "string", optional=True), _field("zip", "int32")),
        "optional": True,
        "field": "place",
    },
    _field("millis", "int64", optional=True),
    _field("at", "int64", optional=True, name=f"{_LOGICAL}Timestamp", version=1),
    _field("date", "int32", optional=True, name=f"{_LOGICAL}Date", version=1),
    _field("time", "int32", optional=True, name=f"{_LOGICAL}Time", version=1),
    version=3,
)
_FULL: Final = {
    "i8": -5,
    "i16": 300,
    "i32": 70000,
    "i64": 5000000000,
    "f32": 1.5,
    "f64": -3.0e9,
    "yes": True,
    "text": 'grüße 𝄞 "x"',
    "number": "42",
    "day": "2026-02-03 04:05:06",
    "data": "AP8=",
    "list": ["a", None],
    "map": {"one": 1},
    "place": {"city": "Bonn", "zip": 53111},
    "millis": 1767323045678,
    "at": 1767323045678,
    "date": 20455,
    "time": 45296789,
}
_EMPTY: Final = {
    **dict.fromkeys(_FULL),
    "i8": 127,
    "i16": -1,
    "i64": -1,
    "f32": 0.1,
    "millis": -1,
}
_KEY: Final = _struct("shop.orders.Key", _field("id", "int64"), _field("shard", "string", optional=True))
_ORDER: Final = _struct(
    "shop.orders.Value",
    _field("id", "int64"),
    _field("status", "string", optional=True),
    _field("total", "double", optional=True),
    _field("count", "int32", optional=True, default=1),
)
_SOURCE_BLOCK: Final = _struct(
    "io.debezium.connector.vitess.Source",
    _field("name", "string"),
    _field("table", "string"),
    _field("ts_ms", "int64"),
    _field("snapshot", "string", optional=True, default="false"),
)
_ENVELOPE: Final = _struct(
    "shop.orders.Envelope",
    {**_ORDER, "optional": True, "field": "before"},
    {**_ORDER, "optional": True, "field": "after"},
    {**_SOURCE_BLOCK, "field": "source"},
    _field("op", "string"),
    _field("ts_ms", "int64", optional=True),
    version=1,
)


def _data(schema: dict[str, Any], payload: Any) -> dict[str, Any]:
    return {"schema": schema, "payload": payload}


def _text(value: str) -> dict[str, Any]:
    return _data({"type": "string", "optional": False}, value)


def _record(
    topic: str, key: Any, value: Any, headers: list[Any] | None = None, timestamp: int | None = None
) -> dict[str, Any]:
    return {"topic": topic, "key": key, "value": value, "headers": headers or [], "timestamp": timestamp}


def _order(number: int, status: str | None, total: float | None) -> dict[str, Any]:
    return {"id": number, "status": status, "total": total, "count": None if number == 2 else number}


def _change(op: str, before: Any, after: Any) -> dict[str, Any]:
    source = {"name": "shop", "table": "orders", "ts_ms": 1700000000000, "snapshot": None}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1700000000123}


_ROW_KEY: Final = _data(_struct("shop.rows.Key", _field("id", "int32")), {"id": 1})
_ROWS: Final = [
    _record("shop.rows", _ROW_KEY, _data(_ROW, _FULL), [["trace", _text("abc")]], 1767323045678),
    _record("shop.rows", _ROW_KEY, _data(_ROW, _EMPTY), [["trace", _text('q"uoted')]], 1767323045678),
]
_ORDERS: Final = [
    _record(
        "shop.orders",
        _data(_KEY, {"id": 1, "shard": "-80"}),
        _data(_ENVELOPE, _change("c", None, _order(1, "new", 9.5))),
        [["trace", _text("abc")]],
    ),
    _record(
        "shop.orders",
        _data(_KEY, {"id": 2, "shard": None}),
        _data(_ENVELOPE, _change("u", _order(2, "new", None), _order(2, "grüße", 1.0))),
    ),
    _record(
        "shop.orders",
        _data(_KEY, {"id": 3, "shard": "80-"}),
        _data(_ENVELOPE, _change("d", _order(3, None, 2.0), None)),
        [["trace", _text("x")]],
    ),
]
_TOMBSTONE: Final = _record("shop.orders", _data(_KEY, {"id": 3, "shard": "80-"}), None)
_BEAT: Final = _record(
    "__debezium-heartbeat.shop",
    _data(
        _struct("io.debezium.connector.common.ServerNameKey", _field("serverName", "string")),
        {"serverName": "shop"},
    ),
    _data(_struct("io.debezium.connector.common.Heartbeat", _field("ts_ms", "int64")), {"ts_ms": 1}),
)


def _one(kind: str, **settings: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {
        "transforms": "t",
        "transforms.t.type": kind,
        **{f"transforms.t.{n}": v for n, v in named.items()},
    }


def _if(
    properties: dict[str, str], predicate: str, *, negate: bool = False, **settings: str
) -> dict[str, str]:
    return {
        **properties,
        "transforms.t.predicate": "p",
        **({"transforms.t.negate": "true"} if negate else {}),
        "predicates": "p",
        "predicates.p.type": f"{_CONNECT}predicates.{predicate}",
        **{f"predicates.p.{name}": value for name, value in settings.items()},
    }


_CASTS: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
_NUMBERS: Final = ("i8", "i16", "i32", "i64", "f32", "f64", "yes", "number")

CASES: Final[dict[str, tuple[dict[str, str], list[dict[str, Any]]]]] = {
    "router": (
        _one(f"{_CONNECT}RegexRouter", regex=r"(\w+)\.(.*)", replacement="$2-${1}x".replace("${1}", "$1")),
        [*_ROWS, *_ORDERS, _TOMBSTONE],
    ),
    "router named": (
        _one(f"{_CONNECT}RegexRouter", regex=r"(?<a>shop)\.orders", replacement=r"x\-${a}"),
        [*_ROWS, *_ORDERS],
    ),
    "router first": (_one(f"{_CONNECT}RegexRouter", regex=r"shop|shop\.rows", replacement="x"), _ROWS),
    "logical": (
        _one(f"{_DEBEZIUM}ByLogicalTableRouter", topic_regex=r"(.*)\.(.*)s", topic_replacement="$1.all"),
        [*_ORDERS, _TOMBSTONE, *_ROWS],
    ),
    "logical named": (
        _one(
            f"{_DEBEZIUM}ByLogicalTableRouter",
            topic_regex=r"shop\.(.*)",
            topic_replacement="all-$1",
            key_field_name="table",
            key_field_regex=r"shop\.(.*)",
            key_field_replacement="$1",
            schema_name_adjustment_mode="avro",
        ),
        [*_ORDERS, _TOMBSTONE],
    ),
    "logical alike": (
        _one(
            f"{_DEBEZIUM}ByLogicalTableRouter",
            topic_regex=r"shop\.(.*)",
            topic_replacement="all",
            key_enforce_uniqueness="false",
        ),
        _ORDERS,
    ),
    "fields without": (_one(f"{_CONNECT}ReplaceField$Value", exclude="list,map,absent"), _ROWS),
    "fields only": (
        _one(f"{_CONNECT}ReplaceField$Value", include="text,i32", renames="text:name,i64:other"),
        _ROWS,
    ),
    "fields of keys": (_one(f"{_CONNECT}ReplaceField$Key", exclude="shard", renames="id:order_id"), _ORDERS),
    "fields none": (_one(f"{_CONNECT}ReplaceField$Value", include="absent"), _ROWS),
    "fields of envelope": (
        _if(_one(f"{_CONNECT}ReplaceField$Value", exclude="before,ts_ms"), "RecordIsTombstone", negate=True),
        [*_ORDERS, _TOMBSTONE],
    ),
    "mask": (
        _one(f"{_CONNECT}MaskField$Value", fields="i8,i16,i32,i64,f32,f64,yes,text,list,map,at,date,time"),
        _ROWS,
    ),
    "mask by": (_one(f"{_CONNECT}MaskField$Value", fields="i32,i64,f64,text", replacement="12"), _ROWS),
    "mask keys": (_one(f"{_CONNECT}MaskField$Key", fields="shard", replacement="***"), _ORDERS),
    **{
        f"cast to {kind}": (
            _one(f"{_CONNECT}Cast$Value", spec=",".join(f"{name}:{kind}" for name in _NUMBERS)),
            _ROWS,
        )
        for kind in _CASTS
    },
    "cast times": (_one(f"{_CONNECT}Cast$Value", spec="date:int64,time:string,data:string"), _ROWS),
    "time to text": (
        _one(
            f"{_CONNECT}TimestampConverter$Value",
            field="at",
            target_type="string",
            format="yyyy-MM-dd'T'HH:mm:ss.SSSXXX a h yy",
        ),
        _ROWS,
    ),
    "number to text": (
        _one(
            f"{_CONNECT}TimestampConverter$Value",
            field="millis",
            target_type="string",
            format="dd.MM.yyyy HH:mm:ss Z",
        ),
        _ROWS,
    ),
    "text to time": (
        _one(
            f"{_CONNECT}TimestampConverter$Value",
            field="day",
            target_type="Timestamp",
            format="yyyy-MM-dd HH:mm:ss",
        ),
        _ROWS,
    ),
    "text to number": (
        _one(
            f"{_CONNECT}TimestampConverter$Value",
            field="day",
            target_type="unix",
            format="yyyy-MM-dd HH:mm:ss",
            unix_precision="microseconds",
        ),
        _ROWS,
    ),
    "number to date": (
        _one(f"{_CONNECT}TimestampConverter$Value", field="millis", target_type="Date"),
        _ROWS,
    ),
    "number to time": (
        _one(f"{_CONNECT}TimestampConverter$Value", field="millis", target_type="Time"),
        _ROWS,
    ),
    "time to seconds": (
        _one(f"{_CONNECT}TimestampConverter$Value", field="at", target_type="unix", unix_precision="seconds"),
        _ROWS,
    ),
    "date to time": (
        _one(f"{_CONNECT}TimestampConverter$Value", field="date", target_type="Timestamp"),
        _ROWS,
    ),
    "insert": (
        _one(
            f"{_CONNECT}InsertField$Value",
            topic_field="topic",
            partition_field="part?",
            timestamp_field="when!",
            static_field="env",
            static_value="prod",
        ),
        _ROWS,
    ),
    "insert into keys": (
        _one(f"{_CONNECT}InsertField$Key", static_field="env!", static_value="prod"),
        _ORDERS,
    ),
    "insert header": (
        _one(f"{_CONNECT}InsertHeader", header="env", value_literal="prod"),
        [*_ORDERS, _TOMBSTONE],
    ),
    "insert truth": (_one(f"{_CONNECT}InsertHeader", header="flag", value_literal="true"), _ROWS),
    "drop headers": (_one(f"{_CONNECT}DropHeaders", headers="trace,absent"), [*_ORDERS, _TOMBSTONE]),
    "to headers": (
        _one(f"{_CONNECT}HeaderFrom$Value", fields="text,i32,place", headers="t,n,p", operation="move"),
        _ROWS,
    ),
    "copied to headers": (
        _one(f"{_CONNECT}HeaderFrom$Key", fields="id", headers="h", operation="copy"),
        _ORDERS,
    ),
    "from headers": (
        _one(f"{_DEBEZIUM}HeaderToValue", fields="trace_id", headers="trace", operation="move"),
        _ROWS,
    ),
    "copied from headers": (
        _one(f"{_DEBEZIUM}HeaderToValue", fields="source.trace", headers="trace", operation="copy"),
        [_ORDERS[0], _ORDERS[2], _TOMBSTONE],
    ),
    "hoist": (_one(f"{_CONNECT}HoistField$Value", field="row"), _ROWS),
    "hoist key": (_one(f"{_CONNECT}HoistField$Key", field="k"), [*_ORDERS, _TOMBSTONE]),
    "extract": (_one(f"{_CONNECT}ExtractField$Value", field="place"), _ROWS),
    "extract after": (_one(f"{_CONNECT}ExtractField$Value", field="after"), _ORDERS),
    "extract deep": (
        _one(f"{_CONNECT}ExtractField$Value", field="source.table", field_syntax_version="V2"),
        _ORDERS,
    ),
    "extract key": (_one(f"{_CONNECT}ExtractField$Key", field="id"), [*_ORDERS, _TOMBSTONE]),
    "value to key": (_one(f"{_CONNECT}ValueToKey", fields="i64,text"), _ROWS),
    "flatten": (
        _if(_one(f"{_CONNECT}Flatten$Value", delimiter="_"), "TopicNameMatches", pattern=r"shop\.orders"),
        _ORDERS,
    ),
    "schema": (_one(f"{_CONNECT}SetSchemaMetadata$Value", schema_name="Row", schema_version="9"), _ROWS),
    "schema of keys": (_one(f"{_CONNECT}SetSchemaMetadata$Key", schema_name="K"), [*_ORDERS, _TOMBSTONE]),
    "drop tombstones": (_if(_one(f"{_CONNECT}Filter"), "RecordIsTombstone"), [*_ORDERS, _TOMBSTONE]),
    "drop without header": (
        _if(_one(f"{_CONNECT}Filter"), "HasHeaderKey", negate=True, name="trace"),
        [*_ORDERS, _TOMBSTONE],
    ),
    "drop topic": (
        _if(_one(f"{_CONNECT}Filter"), "TopicNameMatches", pattern="__debezium-heartbeat.*"),
        [*_ORDERS, _BEAT],
    ),
    "partition": (
        _one(
            f"{_DEBEZIUM}partitions.PartitionRouting",
            partition_payload_fields="change.id,change.status,source.table,absent.x",
            partition_topic_num="7",
        ),
        [*_ORDERS, _TOMBSTONE, _BEAT],
    ),
    "partition by number": (
        _one(
            f"{_DEBEZIUM}partitions.PartitionRouting",
            partition_payload_fields="change.total",
            partition_topic_num="5",
        ),
        _ORDERS,
    ),
    "rows": (_one(f"{_DEBEZIUM}ExtractNewRecordState"), [*_ORDERS, _TOMBSTONE, _BEAT]),
    "rows with more": (
        _one(
            f"{_DEBEZIUM}ExtractNewRecordState",
            add_fields="op,source.ts_ms,table:t",
            add_headers="op,source.ts_ms",
            delete_tombstone_handling_mode="rewrite",
        ),
        [*_ORDERS, _TOMBSTONE],
    ),
    "rows without deletes": (
        _one(f"{_DEBEZIUM}ExtractNewRecordState", delete_tombstone_handling_mode="drop"),
        [*_ORDERS, _TOMBSTONE],
    ),
    "several": (
        {
            "transforms": "u, f ,r",
            "transforms.u.type": f"{_DEBEZIUM}ExtractNewRecordState",
            "transforms.u.delete.tombstone.handling.mode": "drop",
            "transforms.f.type": f"{_CONNECT}ReplaceField$Value",
            "transforms.f.renames": "total:sum",
            "transforms.f.predicate": "orders",
            "transforms.r.type": f"{_CONNECT}RegexRouter",
            "transforms.r.regex": r"shop\.(.*)",
            "transforms.r.replacement": "rows-$1",
            "predicates": "orders",
            "predicates.orders.type": f"{_CONNECT}predicates.TopicNameMatches",
            "predicates.orders.pattern": r".*orders",
        },
        [*_ORDERS, _TOMBSTONE, _BEAT],
    ),
}
"""Properties and records by name."""


def main() -> None:
    """Write the fixture."""
    jars = debezium_mongodb_jars()
    java = find_java()
    cases = [{"properties": properties, "records": records} for properties, records in CASES.values()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = ":".join(map(str, jars.glob("*.jar")))
        compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", name, "-cp", path]
        run_program([*compiler, str(_SOURCE)], f"compiling {_SOURCE.name}")
        (folder / "cases.json").write_text(json.dumps(cases))
        arguments = [str(folder / "cases.json"), str(folder / "results.json")]
        run_program([java, "-cp", f"{name}:{jars}/*", _SOURCE.stem, *arguments], "Kafka Connect's transforms")
        results = json.loads((folder / "results.json").read_text())
    known = [json.dumps(record, ensure_ascii=False) for one in cases for record in one["records"]]
    texts = list(dict.fromkeys(known))
    written = [
        {
            "name": name,
            "properties": one["properties"],
            "records": [texts.index(json.dumps(record, ensure_ascii=False)) for record in one["records"]],
            "results": result,
        }
        for name, one, result in zip(CASES, cases, results, strict=True)
    ]
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in written)
    inputs = ",\n".join(texts)
    FIXTURE.write_text(f'{{"records": [\n{inputs}\n],\n"cases": [\n{lines}\n]}}\n')
    print(f"{len(written)} cases: {FIXTURE}")


if __name__ == "__main__":
    main()
