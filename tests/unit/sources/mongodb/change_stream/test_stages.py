"""Options of the change stream, and their validation in a declaration."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import bson
import pytest
from bson import json_util

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.change_stream.guard import require_members
from airflow_cdc_provider.sources.mongodb.change_stream.pipeline import describe_pipeline, stream_pipeline
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.selection import EXPANDED, Selection, event_filter
from airflow_cdc_provider.sources.mongodb.start_times import check_start_time, parse_start_time


def options(**source: Any) -> MongodbOptions:
    built = Connector.from_dict({"name": "shop", "source": {"type": "mongodb", **source}}).source
    assert isinstance(built, MongodbOptions)
    return built


def stages(*expected: Any, **stream: Any) -> tuple[Any, ...]:
    return options(stream={"pipeline": list(expected), **stream}).stream.pipeline


@pytest.mark.covers("MDB-CUR-01")
def test_stages_are_a_list_or_a_text_of_json() -> None:
    stage = {"$match": {"fullDocument.at": {"$gte": {"$date": "2026-05-01T00:00:00Z"}}}}
    assert stages(stage) == (stage,)
    text = options(stream={"pipeline": json.dumps([stage])})
    assert text.stream.pipeline == (stage,)
    assert options(stream={"pipeline": " "}).stream.pipeline == ()
    sent = stream_pipeline(text, None, split=True)[2]
    fences, own = sent["$match"]["$or"]
    assert fences == {"operationType": {"$in": ["drop", "rename", "dropDatabase", "invalidate"]}}
    assert isinstance(own["fullDocument.at"]["$gte"], datetime)
    with pytest.raises(ConfigurationError, match="is not valid JSON"):
        options(stream={"pipeline": '[{"$match": '})
    with pytest.raises(ConfigurationError, match="a list"):
        options(stream={"pipeline": '{"$match": {}}'})
    with pytest.raises(ConfigurationError, match="Extended JSON"):
        stages({"$match": {"x": date(2026, 5, 1)}})
    with pytest.raises(ConfigurationError, match="not valid Extended JSON"):
        stream_pipeline(options(stream={"pipeline": [{"$match": {"_id": {"$oid": "x"}}}]}), None, split=True)


@pytest.mark.covers("MDB-CUR-01", "MDB-FAULT-01")
@pytest.mark.parametrize(
    ("stage", "found"),
    [
        ({"$group": {"_id": 1}}, r"stage 0: \$group"),
        ({"$match": {}, "$set": {}}, r"one operator each"),
        ({}, "stage 0: none"),
        ({"$changeStreamSplitLargeEvent": {}}, "oversize: split"),
        ({"$unset": "_id"}, "removes or changes _id"),
        ({"$unset": ["fullDocument.x", "ns.coll"]}, r"ns\.coll"),
        ({"$project": {"clusterTime": 0}}, "clusterTime"),
        ({"$project": {"documentKey": {"_id": False}}}, r"documentKey\._id"),
        ({"$project": {"_id": 0, "fullDocument": 1}}, "_id, clusterTime, documentKey, ns, operationType"),
        ({"$project": {"fullDocument": 1, "ns": 1, "documentKey._id": 1}}, "clusterTime, operationType"),
        ({"$set": {"ns": {"coll": "x"}}}, r"ns\.coll"),
        ({"$addFields": {"_id._data": "x"}}, r"_id\._data"),
        ({"$project": {"fullDocument": {"_id": 0}}}, r"fullDocument\._id"),
        ({"$replaceRoot": {"newRoot": "$fullDocument"}}, "clusterTime"),
        ({"$replaceWith": {"_id": "$_id", "ns": "$ns"}}, "clusterTime, documentKey, operationType"),
    ],
)
def test_stages_that_would_break_the_capture_are_refused_where_they_are_declared(
    stage: dict[str, Any], found: str
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"invalid value for option source\.stream\.pipeline.*" + found
    ):
        stages(stage)


@pytest.mark.parametrize(
    "stage",
    [
        {"$unset": ["fullDocument.secret", "updateDescription", "documentKey.shard"]},
        {"$project": {"fullDocument.secret": 0, "lsid": False}},
        {"$project": dict.fromkeys(("operationType", "clusterTime", "ns", "documentKey", "fullDocument"), 1)},
        {"$set": {"fullDocument.full": {"$concat": ["$fullDocument.a", "$fullDocument.b"]}}},
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"x": 1}]}}},
        {"$replaceWith": "$$ROOT"},
        {"$redact": {"$cond": [{"$eq": ["$level", 5]}, "$$PRUNE", "$$DESCEND"]}},
    ],
)
def test_stages_that_leave_what_capture_needs_are_taken(stage: dict[str, Any]) -> None:
    assert stages(stage) == (stage,)


@pytest.mark.covers("MDB-CUR-02", "MDB-CUR-03", "MDB-CUR-04", "MDB-CUR-05", "MDB-CUR-08")
@pytest.mark.parametrize(
    ("order", "operators"),
    [
        ("internal_first", ["built-in", "user"]),
        ("user_first", ["user", "built-in"]),
        ("user_only", ["user"]),
    ],
)
def test_the_order_of_stages_is_the_configured_one(order: str, operators: list[str]) -> None:
    own = {"$match": {"mine": 1}}
    for oversize in ("split", "skip", "fail"):
        limit = {"skip_threshold_bytes": 5} if oversize == "skip" else {}
        chosen = options(stream={"pipeline": [own], "pipeline_order": order, "oversize": oversize, **limit})
        first, *middle = stream_pipeline(chosen, Selection(), split=True)
        assert list(first) == ["$changeStream"]
        if oversize == "skip":
            assert "$bsonSize" in json_util.dumps(middle.pop(0))
        if oversize == "split":
            assert middle.pop() == {"$changeStreamSplitLargeEvent": {}}
        assert ["user" if "mine" in str(stage) else "built-in" for stage in middle] == operators
        assert describe_pipeline([first, *middle]).startswith('[{"$changeStream": {')


@pytest.mark.covers("MDB-CUR-09")
@pytest.mark.parametrize(
    "stream",
    [
        {"oversize": "skip"},
        {"oversize": "skip", "skip_threshold_bytes": 0},
        {"skip_threshold_bytes": 1},
        {"oversize": "fail", "skip_threshold_bytes": 1},
        {"oversize": "skip", "skip_threshold_bytes": -1},
        {"pipeline_order": "user_only"},
        {"collation": {"strength": 1}},
        {"skipped_operations": ["t"]},
    ],
)
def test_choices_that_do_not_go_together_are_refused(stream: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"source\.stream\."):
        options(stream=stream)


@pytest.mark.covers("MDB-CAP-13", "MDB-XD-25")
def test_a_target_must_fit_its_scope_when_it_is_declared() -> None:
    assert options(scope="collection", target="db.a.b").target == "db.a.b"
    for scope, name in (("database", ""), ("database", "a.b"), ("collection", "a"), ("collection", ".a")):
        with pytest.raises(ConfigurationError, match=r"invalid value for option source\.target"):
            options(scope=scope, target=name)


@pytest.mark.covers("MDB-CAP-15", "MDB-XM-07")
def test_the_built_in_filter_handles_skipped_and_expanded_kinds() -> None:
    text = json.dumps(event_filter(Selection(), skipped=("update", "replace"), expanded=True))
    assert not {'"update"', '"replace"'} & set(text.replace(",", " ").replace("]", " ").split())
    assert all(f'"{kind}"' in text for kind in ("insert", "delete", "drop", *EXPANDED))


@pytest.mark.covers("MDB-XM-07")
def test_expanded_events_are_requested_only_if_they_are_enabled() -> None:
    for stream, requested in (({}, None), ({"expanded_events": True}, True)):
        (opened, *_) = stream_pipeline(options(stream=stream), Selection(), split=False)
        assert opened["$changeStream"].get("showExpandedEvents") is requested


@pytest.mark.covers("MDB-XM-06")
def test_with_a_collation_the_server_excludes_no_name() -> None:
    """A collation could match other names than the excluded one."""
    selection = Selection((".*",), (r"shop\.Orders",))
    assert "Orders" in json.dumps(event_filter(selection))
    assert "Orders" not in json.dumps(event_filter(selection, collated=True))


@pytest.mark.covers("MDB-CAP-09", "MDB-XM-01")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("1767225600", 1767225600 << 32),
        (str(1767225600 << 32 | 7), 1767225600 << 32 | 7),
        ("2026-01-01T00:00:00Z", 1767225600 << 32),
        ("2026-01-01", 1767225600 << 32),
        ("2026-01-01T02:00:00.9+02:00", 1767225600 << 32),
        ("2100-01-01", 4102444800 << 32),
    ],
)
def test_start_times_are_dates_seconds_or_timestamps(text: str, value: int) -> None:
    assert check_start_time(text) == ""
    assert parse_start_time(text) == value


@pytest.mark.covers("MDB-CAP-09")
@pytest.mark.parametrize("text", ["yesterday", "-1", "0", "1969-12-31", "2200-01-01", str(1 << 64), "1.5"])
def test_an_invalid_start_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"source\.start_at: expected an ISO date"):
        options(start_at=text)


def test_a_start_time_parsed_by_yaml_is_written_back_as_text() -> None:
    for given, text in ((1767225600, "1767225600"), (datetime(2026, 1, 1, 12), "2026-01-01T12:00:00")):
        built = Connector.from_dict({"name": "s", "source": {"type": "mongodb", "start_at": given}})
        assert json.loads(json.dumps(built.to_dict()))["source"]["start_at"] == text


WHOLE = {
    "_id": {"_data": "x"},
    "operationType": "update",
    "clusterTime": bson.Timestamp(1, 1),
    "ns": {"db": "shop", "coll": "a"},
    "documentKey": {"_id": None},
    "fullDocument": {"_id": 1},
}


def look(*events: dict[str, Any], full_document: bool = True) -> None:
    data = as_bytes(b"".join(map(bson.encode, events)))
    require_members(data, split_documents(data), full_document=full_document)


@pytest.mark.covers("MDB-CUR-01")
def test_events_that_lack_a_member_are_reported_with_their_namespace() -> None:
    look(WHOLE, {**WHOLE, "fullDocument": None}, {**WHOLE, "operationType": "invalidate", "ns": None})
    for member in ("operationType", "clusterTime", "ns", "documentKey", "fullDocument"):
        part = {name: value for name, value in WHOLE.items() if name != member}
        with pytest.raises(ConfigurationError, match=rf"expected {member}.* as MongoDB sends it"):
            look(WHOLE, part)
        look({**part, "splitEvent": {"fragment": 1, "of": 2}})
    look({name: value for name, value in WHOLE.items() if name != "fullDocument"}, full_document=False)
    with pytest.raises(ConfigurationError, match=r"fullDocument\._id.*event update of shop\.a"):
        look({**WHOLE, "fullDocument": {"x": 1}})
    with pytest.raises(ConfigurationError, match="fullDocument as"):
        look({**WHOLE, "operationType": "insert", "fullDocument": None}, full_document=False)


@pytest.mark.covers("MDB-FAULT-01")
def test_every_problem_of_a_declaration_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Connector.from_dict(
            {
                "name": "a b",
                "snapshot": {"mode": "sometimes", "moode": "initial"},
                "source": {"type": "mongodb", "stream": {"oversize": "drop"}, "start_at": "soon", "x": 1},
            }
        )
    parts = (
        "option name",
        "snapshot.mode",
        "snapshot.moode",
        "source.stream.oversize",
        "start_at",
        "source.x",
    )
    assert all(part in str(raised.value) for part in parts)
    assert str(raised.value).count("[CDC-CONFIGURATION]") == 1


@pytest.mark.covers("MDB-XE-03")
def test_update_descriptions_go_before_large_events_are_split() -> None:
    chosen = options(stream={"update_descriptions": False, "pipeline": [{"$match": {"x": 1}}]})
    assert [next(iter(stage)) for stage in stream_pipeline(chosen, None, split=True)] == [
        "$changeStream",
        "$match",
        "$match",
        "$unset",
        "$changeStreamSplitLargeEvent",
    ]
    with pytest.raises(ConfigurationError, match="removes all content of updates"):
        options(full_document="none", stream={"update_descriptions": False})
