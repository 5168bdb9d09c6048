from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.cli import live_commands, offline_commands
from airflow_cdc_provider.jobs.spec import JobResult, JobSpec, PublishResult, TableStatus
from airflow_cdc_provider.jobs.stream import StreamState
from airflow_cdc_provider.migration.offsets.mongodb import MongodbOffsets
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.tasks import spark_process
from tests.unit.cli.recorded_application import application

OFFSET = {"stream": {"v": 1, "token": "82"}}


@pytest.fixture
def connector(tmp_path: Path) -> str:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nsource: {type: mongodb}\n")
    return str(file)


def test_show_and_lag_print_what_the_stage_reports(
    connector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True, offset=OFFSET, lag_seconds=1.5, lag_bytes=None))
    live_commands.show_offset(Namespace(connector=connector))
    live_commands.lag(Namespace(connector=connector))
    shown, behind = map(json.loads, capsys.readouterr().out.splitlines())
    assert shown == OFFSET
    assert behind == {"bytes": None, "seconds": 1.5}
    assert [(s.stage, s.options) for s in recorded.specs] == [("offsets", {"action": "show"})] * 2


def test_publishing_progress_goes_to_stderr_and_may_be_set(
    connector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = PublishResult(7, pending_batches=2, lag_seconds=1.5)
    recorded = application(monkeypatch, JobResult(ok=True, offset=OFFSET, published=published))
    live_commands.show_offset(Namespace(connector=connector))
    live_commands.publish_from(Namespace(connector=connector, batch=8))
    shown = capsys.readouterr()
    assert json.loads(shown.out) == OFFSET
    line = "published through batch 7, 2 batches pending, the oldest for 1.5 s"
    assert shown.err.splitlines() == [line, line]
    assert [s.options for s in recorded.specs] == [{"action": "show"}, {"action": "publish", "batch": 8}]


def test_status_prints_a_line_per_table(
    connector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = (TableStatus("a.b", "running", None, pending=3), TableStatus("a.c", "done", OFFSET, rows=7))
    recorded = application(monkeypatch, JobResult(ok=True, status=tables))
    live_commands.status(Namespace(connector=connector))
    printed = map(json.loads, capsys.readouterr().out.splitlines())
    assert tuple(TableStatus(**one) for one in printed) == tables
    assert recorded.specs[0].options == {"action": "status"}


def test_set_and_import_store_the_same_offset(
    connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True, offset=OFFSET))
    file = tmp_path / "offset.json"
    live_commands.export_offset(Namespace(connector=connector, file=str(file), to="file", moved_from=""))
    live_commands.import_offset(
        Namespace(connector=connector, file=str(file), allow_offset_invalidation=False, host_id="")
    )
    live_commands.set_offset(Namespace(connector=connector, offset=json.dumps(OFFSET)))
    assert [s.options for s in recorded.specs[1:]] == [{"action": "set", "offset": OFFSET}] * 2


@pytest.mark.covers("MDB-OFF-01", "MDB-OFF-03", "MDB-OFF-04")
def test_an_offset_of_debezium_is_imported(
    connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True, offset=OFFSET))
    monkeypatch.setattr(MongodbOffsets, "_shards", lambda _: ["s1", "s2"])
    file = tmp_path / "connect-offsets.json"

    def store(*replica_sets: str, allow: bool = False) -> None:
        stored = []
        for number, name in enumerate(replica_sets):
            partition = {"server_id": "shop", **({"replicaSetName": name} if name else {})}
            offset = {"sec": 1795256806 - 10 * number, "ord": 4, "initsync": True}
            stored.append({"partition": partition, "offset": offset})
        file.write_text(json.dumps({"offsets": stored}))
        live_commands.import_offset(
            Namespace(connector=connector, file=str(file), allow_offset_invalidation=allow, host_id="")
        )

    store("")
    place = {"stream": {"v": 1, "token": "", "t": 1795256806, "i": 3, "index": 2**32 - 1}}
    assert recorded.specs[-1].options == {"action": "set", "offset": place}
    assert "initial snapshot was not finished" in capsys.readouterr().err
    store("s1", "s2", allow=True)
    oldest = {"stream": {**place["stream"], "t": 1795256796}}
    assert recorded.specs[-1].options == {"action": "set", "offset": oldest}
    with pytest.raises(SystemExit):
        store("s1", "s2")
    assert "--allow-offset-invalidation" in capsys.readouterr().err
    store("s1", "s3", allow=True)
    assert recorded.specs[-1].options == {"action": "reset"}
    assert "a shard has no offset" in capsys.readouterr().err


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    """Properties of Debezium's connector for Vitess, with two tasks."""
    file = tmp_path / "cdc.properties"
    file.write_text(
        "name=shop\nconnector.class=io.debezium.connector.vitess.VitessConnector\ntopic.prefix=pre\n"
        "vitess.keyspace=shop\nvitess.shard=-80,80-\ntasks.max=2\nvitess.offset.storage.per.task=true\n"
        "vitess.offset.storage.task.key.gen=1\nvitess.prev.num.tasks=1\n"
    )
    return str(file)


SETS = [f"MySQL56/ef0f6879-e57f-11f1-9c08-02fc0000000{n}:1-{n}" for n in (1, 2)]
SHARDS = {
    f"shop/{shard}": {"v": 1, "gtid": gtid, "epoch": 1, "parents": []}
    for shard, gtid in zip(("-80", "80-"), SETS, strict=True)
}


@pytest.mark.covers("VIT-OFS-02", "VIT-OFS-08")
def test_offsets_of_debezium_for_vitess_go_in_and_out(
    tasks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True, offset=SHARDS))
    key = {"fields": [{"name": "id", "type": "INT64"}], "rows": [{"lengths": ["1"], "values": "7"}]}
    vgtid = [
        {"keyspace": "shop", "shard": shard, "gtid": gtid, "table_p_ks": copying}
        for shard, gtid, copying in zip(
            ("-80", "80-"), SETS, ([], [{"table_name": "orders", "lastpk": key}]), strict=True
        )
    ]
    file, written = tmp_path / "connect-offsets.json", tmp_path / "written.json"
    entry = {"partition": {"server": "pre"}, "offset": {"vgtid": json.dumps(vgtid)}}
    file.write_text(json.dumps({"offsets": [entry]}))

    live_commands.import_offset(
        Namespace(connector=tasks, file=str(file), allow_offset_invalidation=False, host_id="")
    )
    assert recorded.specs[-1].options == {"action": "set", "offset": SHARDS}
    assert "copy of shard shop/80- was not finished (orders)" in capsys.readouterr().err

    def exported(**more: str) -> dict[str, Any]:
        arguments = {"to": "debezium", "moved_from": "", **more}
        live_commands.export_offset(Namespace(connector=tasks, file=str(written), **arguments))
        entries = json.loads(written.read_text())["offsets"]
        return {e["partition"].get("task_key", ""): json.loads(e["offset"]["vgtid"]) for e in entries}

    places = [vgtid[0], {**vgtid[1], "table_p_ks": []}]
    assert exported() == {"": places, "task0_2_1": places[:1], "task1_2_1": places[1:]}
    live_commands.import_offset(
        Namespace(connector=tasks, file=str(written), allow_offset_invalidation=False, host_id="")
    )
    assert recorded.specs[-1].options == {"action": "set", "offset": SHARDS}
    assert exported(moved_from=str(file)) == {"task0_2_1": [vgtid[0]], "task1_2_1": [vgtid[1]]}


def test_debeziums_form_is_not_written_for_others(
    connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    application(monkeypatch, JobResult(ok=True, offset=OFFSET))
    with pytest.raises(SystemExit):
        live_commands.export_offset(
            Namespace(connector=connector, file=str(tmp_path / "o.json"), to="debezium", moved_from="")
        )
    assert "only for Vitess and ScyllaDB" in capsys.readouterr().err


@pytest.mark.covers("CAS-FAULT-09")
def test_reset_may_be_for_one_table(connector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = application(monkeypatch, JobResult(ok=True))
    live_commands.reset_offset(Namespace(connector=connector, table=""))
    live_commands.reset_offset(Namespace(connector=connector, table="shop.a"))
    assert [list(s.tables) for s in recorded.specs] == [[], ["shop.a"]]


def test_remove_origin_names_the_node(connector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = application(monkeypatch, JobResult(ok=True))
    live_commands.remove_origin(Namespace(connector=connector, origin="host-1"))
    assert [s.options for s in recorded.specs] == [{"action": "forget", "origin": "host-1"}]


@pytest.mark.parametrize(
    ("result", "offset", "message"),
    [
        (JobResult(ok=True), "no json", "--offset is not valid JSON"),
        (JobResult(ok=True), "[1]", "invalid value for --offset: expected"),
        (JobResult(ok=False, error_code="COMMIT-CONFLICT", error="lost a race"), "{}", "lost a race"),
        (None, "{}", "what Spark printed"),
    ],
)
def test_failures_are_reported_with_exit_code_1(
    connector: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: JobResult | None,
    offset: str,
    message: str,
) -> None:
    application(monkeypatch, result)
    with pytest.raises(SystemExit) as ended:
        live_commands.set_offset(Namespace(connector=connector, offset=offset))
    assert ended.value.code == 1
    assert message in capsys.readouterr().err


def test_an_offset_that_is_not_there_is_not_exported(
    connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application(monkeypatch, JobResult(ok=True))
    with pytest.raises(SystemExit):
        live_commands.export_offset(
            Namespace(connector=connector, file=str(tmp_path / "offset.json"), to="file", moved_from="")
        )
    assert not (tmp_path / "offset.json").exists()


class FoundSource:
    """A source that has been looked at."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        self.closed = False

    def source(self, connector: Any) -> FoundSource:
        return self

    def check(self) -> list[Finding]:
        return self.findings

    def tables(self) -> list[str]:
        return ["s.a"]

    def close(self) -> None:
        self.closed = True


def test_check_prints_findings_and_fails_for_errors(
    connector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = FoundSource(
        [Finding("error", "oplog", "is small", "Make it larger"), Finding("ok", "server", "6.0")]
    )
    monkeypatch.setattr("airflow_cdc_provider.hooks._of_connector.hook_for", lambda connector: found)
    with pytest.raises(SystemExit):
        live_commands.check(Namespace(connector=connector, lake=False))
    assert capsys.readouterr().out == "ok: server: 6.0\nerror: oplog: is small. Make it larger\n"
    assert found.closed
    found.findings = found.findings[1:]
    capsys.readouterr()
    submitted = application(monkeypatch, JobResult(ok=True, findings=("shop.a has version 2",)))
    monkeypatch.setattr(live_commands, "_submit", submitted)
    live_commands.check(Namespace(connector=connector, lake=True))
    can_be_written = "ok: lake: lake.shop can be written and read\n"
    assert (
        capsys.readouterr().out == f"ok: server: 6.0\n{can_be_written}warning: lake: shop.a has version 2\n"
    )


def test_events_of_the_lake_are_what_the_stage_wrote(
    connector: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    recorded = application(monkeypatch, JobResult(ok=True, findings=("skipped: 1 of kind update",)))

    def submit(spec: Path) -> str:
        Path(JobSpec.from_json(spec.read_text()).options["path"]).write_bytes('{"topic":"ü"}\n'.encode())
        return recorded(spec)

    monkeypatch.setattr(live_commands, "_submit", submit)
    given = {"input": "", "from_lake": True, "after_batch": 7, "table": "s.a", "schema": "", "at": 5}
    offline_commands.events(Namespace(connector=connector, **given))
    assert capfdbinary.readouterr() == ('{"topic":"ü"}\n'.encode(), b"skipped: 1 of kind update\n")
    (spec,) = recorded.specs
    assert (spec.stage, list(spec.tables)) == ("events", ["s.a"])
    assert (spec.options["after_batch"], spec.options["now_ns"]) == (7, 5 * 10**9)


def test_metrics_are_those_of_the_continuous_application(
    connector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = Namespace(connector=connector, work_folder=str(tmp_path))
    with pytest.raises(SystemExit):
        live_commands.metrics(arguments)
    assert "no continuous application of connector shop" in capsys.readouterr().err
    metrics = {"streaming": {"TotalNumberOfEventsSeen": 7}, "snapshot": {"SnapshotCompleted": True}}
    folder = tmp_path / "shop" / "stream"
    folder.mkdir(parents=True)
    now = time.time()
    StreamState(1, "here", "shop", now, now, metrics=metrics).write(folder / "state.json")

    live_commands.metrics(arguments)

    assert json.loads(capsys.readouterr().out) == {"status": "running", "updated_at": now, **metrics}


def test_an_application_starts_without_what_only_pays_in_a_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "spark-submit"
    program.write_text('#!/bin/sh\necho "$JDK_JAVA_OPTIONS"\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(spark_process, "search_path", lambda: os.environ["PATH"])
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xmx1g")
    options, arguments = live_commands._submit(tmp_path / "spec.json").splitlines()
    assert options == "-XX:TieredStopAtLevel=1 -Xmx1g", "what the environment says wins"
    assert "--conf spark.ui.enabled=false" in arguments
    assert arguments.endswith(str(tmp_path / "spec.json"))
