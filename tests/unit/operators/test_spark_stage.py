"""What every Spark stage operator promises, proved with a ``spark-submit`` that runs no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, CommitConflict, TransientError
from airflow_cdc_provider.operators.stages import (
    CdcOffsetsOperator,
    CdcSnapshotOperator,
    CdcSyncOperator,
    CdcVerifyOperator,
)
from airflow_cdc_provider.tasks.spark_process import last_word
from tests.unit.airflow_context import Store, TaskContext
from tests.unit.fake_spark import DECLARATION, PASSWORD, FakeSpark

RESULT: dict[str, Any] = {
    "offset": {"host-1": {"v": 1, "floor": 6, "open": {"7": 4096}}},
    "batches": 2,
    "changes": 30,
    "lag_seconds": 1.5,
    "lag_bytes": 2048,
    "seconds": {"capture": 2.0, "all": 9.0},
    "tables": [
        {"table": "shop.orders", "rows_written": 20, "merged_through": 4},
        {"table": "shop.quiet", "merged_through": 4},
    ],
}


def sync(**arguments: Any) -> CdcSyncOperator:
    return CdcSyncOperator(task_id="sync", connector=DECLARATION, **arguments)


@pytest.mark.covers("CAS-CFG-08")
def test_job_gets_spec_and_connection_and_neither_secret_is_an_argument(
    spark_submit: FakeSpark, work_folder: Path
) -> None:
    sync(tables="shop.orders, shop.carts", keep_run_folder=True).execute(TaskContext())

    seen = spark_submit.seen
    assert seen["spec"]["stage"] == "sync"
    assert seen["spec"]["tables"] == ["shop.orders", "shop.carts"]
    assert Connector.from_dict(seen["spec"]["connector"]) == Connector.from_dict(DECLARATION)
    assert seen["connection"]["password"] == PASSWORD
    assert seen["connection"]["extra"]["local_datacenter"] == "dc1"
    assert seen["mode"] == "0o600"
    assert PASSWORD not in json.dumps([seen["arguments"], seen["spec"]])
    assert not list(work_folder.rglob("connection.json"))


def encrypted(**source: str) -> dict[str, Any]:
    encryption = {"keystore": "/k.jceks", "keystore_password": "w0rd-of-the-store"}
    return {**DECLARATION, "source": {**DECLARATION["source"], **source, "encryption": encryption}}


@pytest.mark.covers("CAS-C50-08")
def test_passwords_of_a_keystore_travel_with_the_connection(spark_submit: FakeSpark) -> None:
    spark_submit.answers(ok=False, error_code="CONFIGURATION", error="opened with w0rd-of-the-store")
    with pytest.raises(AirflowFailException) as failed:
        CdcSyncOperator(task_id="sync", connector=encrypted()).execute(TaskContext())

    seen = spark_submit.seen
    path = ["source", "encryption", "keystore_password"]
    assert seen["connection"]["declared_secrets"] == [[path, "w0rd-of-the-store"]]
    assert seen["spec"]["connector"]["source"]["encryption"] == {"keystore": "/k.jceks"}
    assert "w0rd-of-the-store" not in json.dumps([seen["arguments"], seen["spec"], str(failed.value)])


def test_passwords_of_a_keystore_need_no_connection_to_travel(spark_submit: FakeSpark) -> None:
    spark_submit.answers(**RESULT)
    CdcSyncOperator(task_id="sync", connector=encrypted(conn_id="")).execute(TaskContext())
    assert list(spark_submit.seen["connection"]) == ["declared_secrets"]


def test_the_run_folder_is_the_owners_only_and_goes_after_success(
    spark_submit: FakeSpark, work_folder: Path
) -> None:
    spark_submit.behaves(
        "(record / 'folder').write_text(oct(os.stat(pathlib.Path(sys.argv[-1]).parent).st_mode & 0o777))\n"
        "pathlib.Path(spec['result_path']).write_text('{\"ok\": true}')\n"
    )
    sync().execute(TaskContext())
    assert (spark_submit.folder / "folder").read_text() == "0o700"
    assert not list(work_folder.rglob("*.json"))


def test_result_becomes_xcom_events_and_state(spark_submit: FakeSpark) -> None:
    spark_submit.answers(**RESULT)
    context = TaskContext()

    xcom = sync().execute(context)

    assert json.loads(json.dumps(xcom)) == xcom
    assert (xcom["changes"], xcom["lag_seconds"], xcom["offset"]) == (30, 1.5, RESULT["offset"])
    assert xcom["tables"]["shop.orders"] == {"rows_written": 20, "merged_through": 4}
    assert context.events.found["cdc/shop/changes"].extra["changes"] == 30
    added = context.events.found["cdc/shop/mirrors"].added
    assert [name for name, _ in added] == ["cdc/shop/mirror/shop.orders"], "a quiet table has no event"
    state = context.assets.found["cdc/shop/changes"].values
    assert state["offset"]["offset"] == RESULT["offset"]
    assert state["status"]["lag_bytes"] == 2048
    assert state["tables"]["shop.orders"]["rows_written"] == 20


def test_the_offset_is_copied_whatever_else_cannot_be_reported(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_submit.answers(**RESULT)
    context = TaskContext()
    with monkeypatch.context() as broken:
        broken.setattr("airflow_cdc_provider.operators.spark_stage.lineage_of", lambda *_, **__: 1 / 0)
        sync().execute(context)
    assert context.assets.found["cdc/shop/changes"].values["offset"]["offset"] == RESULT["offset"]

    monkeypatch.setattr(Store, "set", lambda *_: 1 / 0)
    with pytest.raises(TransientError, match="copy of the connector's offset"):
        sync().execute(TaskContext())


def test_a_table_that_failed_fails_the_task_which_still_reports_the_others(spark_submit: FakeSpark) -> None:
    why = f"shop.bad: opened with {PASSWORD}"
    bad = {"table": "shop.bad", "error_code": "CONFIGURATION", "error": f"[CDC-CONFIGURATION] {why}"}
    spark_submit.answers(
        1,
        **{**RESULT, "tables": [*RESULT["tables"], bad]},
        ok=False,
        error_code="CONFIGURATION",
        error=f"[CDC-CONFIGURATION] 1 of 3 tables could not be merged: {why}",
    )
    context = TaskContext()

    with pytest.raises(AirflowFailException, match=r"1 of 3 tables .* shop\.bad: opened with \*\*\*"):
        sync().execute(context)

    xcom = context.xcom["return_value"]
    assert xcom["tables"]["shop.orders"] == {"rows_written": 20, "merged_through": 4}
    assert xcom["tables"]["shop.bad"]["error"] == "[CDC-CONFIGURATION] shop.bad: opened with ***"
    assert context.assets.found["cdc/shop/changes"].values["tables"]["shop.bad"]["error_code"]
    with pytest.raises(AirflowFailException):
        sync(do_xcom_push=False).execute(context := TaskContext())
    assert not context.xcom


@pytest.mark.parametrize("code", ["CONFIGURATION", "POSITION-LOST", "OFFSET-MISSING"])
def test_what_a_person_must_change_fails_without_retry(spark_submit: FakeSpark, code: str) -> None:
    spark_submit.answers(1, ok=False, error_code=code, error=f"[CDC-{code}] the oplog is too short")
    with pytest.raises(AirflowFailException, match=rf"\[CDC-{code}\] the oplog is too short"):
        sync().execute(TaskContext())


@pytest.mark.covers("CAS-D3X-13")
def test_what_may_pass_keeps_its_class_so_that_airflow_retries(spark_submit: FakeSpark) -> None:
    spark_submit.answers(
        1, ok=False, error_code="COMMIT-CONFLICT", error="[CDC-COMMIT-CONFLICT] another writer"
    )
    with pytest.raises(CommitConflict, match="another writer"):
        sync().execute(TaskContext())


def test_an_unforeseen_failure_names_its_type(spark_submit: FakeSpark) -> None:
    spark_submit.answers(1, ok=False, error_code="ZeroDivisionError", error="division by zero")
    with pytest.raises(CdcError, match="ZeroDivisionError: division by zero"):
        sync().execute(TaskContext())


@pytest.mark.covers("CAS-CFG-08", "CAS-D3X-13")
def test_no_secret_leaves_by_an_error_text(spark_submit: FakeSpark, work_folder: Path) -> None:
    spark_submit.answers(
        1, ok=False, error_code="TRANSIENT", error=f"[CDC-TRANSIENT] login {PASSWORD} refused"
    )
    with pytest.raises(TransientError) as failed:
        sync().execute(TaskContext())
    assert PASSWORD not in str(failed.value)
    assert "login *** refused" in str(failed.value)
    assert not list(work_folder.rglob("connection.json"))


@pytest.mark.covers("CAS-CFG-08", "CAS-D3X-13")
def test_no_secret_leaves_by_a_finding(spark_submit: FakeSpark) -> None:
    spark_submit.answers(findings=[f"login {PASSWORD} is weak"])
    assert sync().execute(TaskContext())["findings"] == ["login *** is weak"]


@pytest.mark.covers("CAS-CFG-08")
def test_a_crash_without_result_shows_what_spark_printed(spark_submit: FakeSpark) -> None:
    spark_submit.behaves(f"print('java.lang.OutOfMemoryError {PASSWORD}'); sys.exit(137)")
    with pytest.raises(CdcError, match="OutOfMemoryError") as failed:
        sync().execute(TaskContext())
    assert PASSWORD not in str(failed.value)


def test_an_old_result_is_never_taken_for_a_new_one(spark_submit: FakeSpark) -> None:
    sync(keep_run_folder=True).execute(TaskContext())
    spark_submit.behaves("sys.exit(3)")
    with pytest.raises(CdcError):
        sync().execute(TaskContext())


def test_success_without_result_says_that_the_work_folder_is_not_shared(spark_submit: FakeSpark) -> None:
    spark_submit.behaves("sys.exit(0)")
    with pytest.raises(AirflowFailException, match="work folder must be one that"):
        sync().execute(TaskContext())


def test_a_missing_spark_connection_is_reported_and_nothing_is_submitted(spark_submit: FakeSpark) -> None:
    with pytest.raises(AirflowFailException, match="there is no Spark connection spark_nowhere"):
        sync(spark_conn_id="spark_nowhere").execute(TaskContext())
    assert not spark_submit.started


def test_a_missing_source_connection_is_reported(spark_submit: FakeSpark) -> None:
    with pytest.raises(AirflowFailException, match="there is no connection elsewhere: expected one of type"):
        sync(source_conn_id="elsewhere").execute(TaskContext())
    assert not spark_submit.started


def test_no_java_is_reported(
    spark_submit: FakeSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    with pytest.raises(AirflowFailException, match=r"there is no Java on this worker.*openjdk-17"):
        sync().execute(TaskContext())


def test_no_spark_submit_is_reported(spark_submit: FakeSpark) -> None:
    (spark_submit.folder / "spark-submit").unlink()
    with pytest.raises(AirflowFailException, match="there is no spark-submit on this worker's PATH"):
        sync(env_vars={"PATH": str(spark_submit.folder)}).execute(TaskContext())


def test_an_unusable_work_folder_is_reported(spark_submit: FakeSpark, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AirflowFailException, match=r"can't be written to.*work_folder"):
        sync(work_folder=str(tmp_path / "file" / "below")).execute(TaskContext())


def test_a_full_disk_is_reported_and_may_be_retried(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TransientError, match=r"the disk of folder .* is full"):
        sync().execute(TaskContext())


def test_a_wrong_declaration_is_reported_when_the_dag_is_parsed() -> None:
    with pytest.raises(CdcError, match=r"unknown option tabels.*Did you mean tables"):
        CdcSyncOperator(task_id="sync", connector={**DECLARATION, "tabels": []})


@pytest.mark.covers("CAS-FAULT-03")
def test_killing_the_task_ends_the_application_and_all_below_it(spark_submit: FakeSpark) -> None:
    spark_submit.behaves(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "(record / 'child').write_text(str(child.pid))\n"
        "time.sleep(300)\n"
    )
    operator = sync()
    failures: list[CdcError] = []

    def run() -> None:
        try:
            operator.execute(TaskContext())
        except CdcError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    child = spark_submit.folder / "child"
    deadline = time.monotonic() + 20
    while not child.exists() or not child.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    operator.on_kill()
    thread.join(10)
    assert not thread.is_alive()
    assert len(failures) == 1
    assert _gone(spark_submit.seen["pid"])
    assert _gone(int(child.read_text()))


def test_a_cleared_task_runs_again(spark_submit: FakeSpark) -> None:
    context = TaskContext()
    context.task_state.set("spark_job_id", "driver-of-an-ended-run")
    sync().execute(context)
    assert "spark_job_id" not in context.task_state.values


def test_name_is_made_of_stage_connector_dag_and_run(spark_submit: FakeSpark) -> None:
    sync().execute(TaskContext())
    arguments = spark_submit.seen["arguments"]
    assert arguments[arguments.index("--name") + 1].startswith("cdc-sync-shop-shop_dag-manual__2026")


def test_configured_jars_reach_spark(spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CDC__SPARK_JARS", "/opt/iceberg.jar")
    sync().execute(TaskContext())
    arguments = spark_submit.seen["arguments"]
    assert arguments[arguments.index("--jars") + 1] == "/opt/iceberg.jar"


def test_snapshot_names_its_tables_and_mode(spark_submit: FakeSpark) -> None:
    CdcSnapshotOperator(
        task_id="snapshot", connector=DECLARATION, tables="['shop.orders']", mode="add"
    ).execute(TaskContext())
    assert spark_submit.seen["spec"]["tables"] == ["shop.orders"]
    assert spark_submit.seen["spec"]["options"] == {"mode": "add"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tables": ""}, "no table is named for the snapshot"),
        (
            {"tables": "shop.orders", "mode": "swap"},
            "invalid value for option mode: expected one of replace, add",
        ),
    ],
)
def test_a_wrong_snapshot_is_reported(spark_submit: FakeSpark, arguments: dict[str, str], text: str) -> None:
    operator = CdcSnapshotOperator(task_id="snapshot", connector=DECLARATION, **arguments)
    with pytest.raises(AirflowFailException, match=text):
        operator.execute(TaskContext())
    assert not spark_submit.started


def test_offsets_are_set_from_a_templates_text(spark_submit: FakeSpark) -> None:
    CdcOffsetsOperator(
        task_id="offsets", connector=DECLARATION, action="set", offset='{"host-1": {"v": 1}}'
    ).execute(TaskContext())
    assert spark_submit.seen["spec"]["options"] == {"action": "set", "offset": {"host-1": {"v": 1}}}


def test_a_reset_takes_the_shown_offset_away(spark_submit: FakeSpark) -> None:
    context = TaskContext()
    spark_submit.answers(**RESULT)
    sync().execute(context)
    spark_submit.answers(offset=None)
    CdcOffsetsOperator(task_id="offsets", connector=DECLARATION, action="reset").execute(context)
    assert context.assets.found["cdc/shop/changes"].values["offset"]["offset"] is None


@pytest.mark.parametrize(("allowed", "fails"), [(0, True), (2, True), (3, False), (None, False)])
def test_verify_fails_beyond_the_differences_allowed(
    spark_submit: FakeSpark, allowed: int | None, fails: bool
) -> None:
    spark_submit.answers(
        1,
        ok=False,
        error_code="DIFFERENT",
        error="3 rows differ",
        tables=[{"table": "a.b", "differences": 3}],
    )
    operator = CdcVerifyOperator(task_id="verify", connector=DECLARATION, max_differences=allowed)
    if fails:
        with pytest.raises(CdcError, match="3 rows differ"):
            operator.execute(TaskContext())
    else:
        assert operator.execute(TaskContext())["tables"]["a.b"]["differences"] == 3


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        if not state.stdout.strip() or state.stdout.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def test_short_runs_leave_the_optimising_compiler_out_unless_the_environment_says_otherwise(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "(record / 'options').write_text(os.environ.get('JDK_JAVA_OPTIONS', 'none'))\n"
    spark_submit.behaves(said + "pathlib.Path(spec['result_path']).write_text('{\"ok\": true}')\n")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=4")

    sync().execute(TaskContext())
    assert (spark_submit.folder / "options").read_text() == "-XX:TieredStopAtLevel=1 -XX:TieredStopAtLevel=4"

    sync(env_vars={"JDK_JAVA_OPTIONS": "-Xlog:gc"}).execute(TaskContext())
    assert (spark_submit.folder / "options").read_text() == "-Xlog:gc"


def test_of_an_applications_output_the_last_line_that_names_an_error_is_reported() -> None:
    output = "INFO\njava.io.IOException: lost\n\tat x.Y\n  org.apache.Foo$BarError: that\nbye\n"
    assert last_word(output) == "org.apache.Foo$BarError: that"
    assert last_word("one\n\ntwo\n") == "two"
    assert last_word("") == "no output"
