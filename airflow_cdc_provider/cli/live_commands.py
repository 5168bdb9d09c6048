"""Commands on a connector: ``airflow cdc check``, ``schema``, ``lag``, ``status``, ``metrics``, ``offsets``.

``check`` and ``schema`` connect to the source, ``create-topics`` also to the brokers; ``metrics`` reads the
state file of the continuous application. The others read or change the offset, which is stored in the
lake: they run the job stage ``offsets`` (``airflow cdc events --from-lake``: the stage ``events``,
``check --lake``: the stage ``check_lake``) in a Spark application on this machine, with the jars of
``[cdc] spark_jars`` and the settings of ``spark-defaults.conf``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow_cdc_provider.cli.running import (
    command,
    connect_offsets_of,
    read_connector,
    write,
    write_data,
    wrong_usage,
)
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.plugin import options_of

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.contract import Finding

_MAX_LOG_LINES = 20


@command
def check(args: Namespace) -> None:
    """Print findings, errors last; exit code 1 if there are errors."""
    from airflow_cdc_provider.hooks._of_connector import check_connector, hook_for

    connector = read_connector(args.connector)
    source = hook_for(connector).source(connector)
    try:
        findings = check_connector(connector, source)
    finally:
        source.close()
    if args.lake:
        findings += _check_lake(connector)
    levels = ("ok", "note", "warning", "error")
    for finding in sorted(findings, key=lambda finding: levels.index(finding.level)):
        remedy = f". {finding.remedy}" if finding.remedy else ""
        write(f"{finding.level}: {finding.subject}: {finding.message}{remedy}")
    if any(finding.level == "error" for finding in findings):
        raise ConfigurationError(
            f"connector {connector.name} fails its checks", remedy="See the errors above"
        )


def _check_lake(connector: Connector) -> list[Finding]:
    from airflow_cdc_provider.sources.contract import Finding

    try:
        result = _run("check_lake", connector, {})
    except CdcError as error:
        return [Finding("error", "lake", str(error))]
    found = Finding("ok", "lake", f"{connector.lake.catalog}.{connector.namespace} can be written and read")
    return [found, *(Finding("warning", "lake", finding) for finding in result.findings)]


@command
def create_topics(args: Namespace) -> None:
    """Create missing topics of the connector's tables; print the outcome of each."""
    from airflow_cdc_provider.operators._create_topics import create_missing

    created = create_missing(read_connector(args.connector))
    for name, topics in created.items():
        for topic in topics:
            write(f"{name}: {topic}")


@command
def schema(args: Namespace) -> None:
    """Print columns inferred from a sample of each collection, in the format of option ``source.columns``."""
    from airflow_cdc_provider.hooks._of_connector import hook_for
    from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook

    connector = read_connector(args.connector)
    options_of(connector, MongodbOptions)
    if args.sample < 1 or args.seconds <= 0 or args.depth < 1:
        raise wrong_usage("--sample and --depth must be at least 1, --seconds greater than 0")
    hook = hook_for(connector)
    assert isinstance(hook, MongodbCdcHook)
    from airflow_cdc_provider.sources.mongodb.schema_sample import describe, sample_schema

    source = hook.source(connector)
    try:
        tables = [args.table] if args.table else source.tables()
    finally:
        source.close()
    with hook as client:
        write("columns:" if tables else "columns: {}")
        for table in tables:
            sampled = sample_schema(client, table, size=args.sample, seconds=args.seconds, depth=args.depth)
            for line in describe(sampled):
                write(f"  {line}")


@command
def lag(args: Namespace) -> None:
    """Print the lag of the stored offset."""
    result = _offsets(read_connector(args.connector), {"action": "show"})
    write_data({"seconds": result.lag_seconds, "bytes": result.lag_bytes})


@command
def status(args: Namespace) -> None:
    """Print the status of each table, then each signal and each requested snapshot."""
    result = _offsets(read_connector(args.connector), {"action": "status"})
    for table in result.status:
        write_data(asdict(table))
    for entry in result.signals:
        write_data(entry)


@command
def signal(args: Namespace) -> None:
    """Send a signal to the connector and print its ID."""
    from airflow_cdc_provider.tasks.parameters import to_tables
    from airflow_cdc_provider.tasks.signals import send_signal

    data = _parse(args.data, "--data")
    connector = read_connector(args.connector)
    signal_id = send_signal(
        connector, args.work_folder, args.signal, data, tables=to_tables(args.tables), identity=args.id
    )
    write(signal_id)


@command
def metrics(args: Namespace) -> None:
    """Print the latest metrics of the continuous application under Debezium's names."""
    from airflow_cdc_provider.tasks.work_folder import stream_folder

    connector = read_connector(args.connector)
    path = stream_folder(args.work_folder, connector.name).state_path
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no continuous application of connector {connector.name}",
            expected=f"its state file {path}",
            found=str(error),
            remedy="runs of CdcSyncOperator return the same metrics in XCom",
        ) from error
    write_data({"status": state["status"], "updated_at": state["heartbeat_at"], **state["metrics"]})


@command
def show_offset(args: Namespace) -> None:
    """Print the stored offset, null before the first capture; publishing progress goes to stderr."""
    result = _offsets(read_connector(args.connector), {"action": "show"})
    write_data(result.offset)
    _print_publishing_progress(result)


@command
def publish_from(args: Namespace) -> None:
    """Set the batch from which the next run publishes."""
    _print_publishing_progress(
        _offsets(read_connector(args.connector), {"action": "publish", "batch": args.batch})
    )


def _print_publishing_progress(result: Any) -> None:
    """Print the publishing progress of a connector that publishes."""
    for finding in result.findings:
        if "publish" in finding:
            write(finding, sys.stderr)
    if (published := result.published) is not None:
        write(
            f"published through batch {published.batch}, {published.pending_batches} batches pending, the "
            f"oldest for {published.lag_seconds} s",
            sys.stderr,
        )


@command
def set_offset(args: Namespace) -> None:
    """Store an offset and print it."""
    _store(args, _parse(args.offset, "--offset"))


@command
def reset_offset(args: Namespace) -> None:
    """Delete the stored offset, or the completed snapshot of one table."""
    tables = (args.table,) if args.table else ()
    write_data(_offsets(read_connector(args.connector), {"action": "reset"}, tables).offset)


@command
def remove_origin(args: Namespace) -> None:
    """Remove a decommissioned node from the offset."""
    write_data(_offsets(read_connector(args.connector), {"action": "forget", "origin": args.origin}).offset)


@command
def adopt_offset(args: Namespace) -> None:
    """Take over an offset stored under another connection, scope or topic prefix."""
    write_data(_offsets(read_connector(args.connector), {"action": "adopt"}).offset)


@command
def export_offset(args: Namespace) -> None:
    """Write the stored offset to a file, in this package's or Debezium's format."""
    connector = read_connector(args.connector)
    if args.moved_from:
        text = connect_offsets_of(connector).moved_to_generation(_content(args.moved_from))
    else:
        offset = _offsets(connector, {"action": "show"}).offset
        if offset is None:
            raise ConfigurationError("no offset is stored", remedy="run a capture first")
        if args.to == "debezium":
            text = connect_offsets_of(connector).exported(offset)
        else:
            text = json.dumps(offset, sort_keys=True)
    Path(args.file).write_text(f"{text}\n")


@command
def import_offset(args: Namespace) -> None:
    """Store the offset from a file, in this package's or Debezium's format."""
    from airflow_cdc_provider.migration.offsets.conversion import OffsetFile

    content = _content(args.file)
    connector = read_connector(args.connector)
    conversion = connect_offsets_of(connector)
    if not conversion.recognizes(content):
        _store(args, _parse(content.decode(errors="replace"), args.file))
        return
    stored = conversion.imported(
        OffsetFile(content, allow_invalidation=args.allow_offset_invalidation, host_id=args.host_id)
    )
    for remark in stored.remarks:
        write(remark, sys.stderr)
    offset = stored.offset
    if offset is not None and stored.partial:
        offset = {**(_offsets(connector, {"action": "show"}).offset or {}), **offset}
    options = {"action": "reset"} if offset is None else {"action": "set", "offset": offset}
    write_data(_offsets(connector, options).offset)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read", found=error.strerror or str(error)) from error


def _store(args: Namespace, offset: dict[str, Any]) -> None:
    write_data(_offsets(read_connector(args.connector), {"action": "set", "offset": offset}).offset)


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        offset = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where} is not valid JSON", found=str(error)) from error
    if not isinstance(offset, dict):
        raise ConfigurationError(f"invalid value for {where}", expected="a JSON object", found=text[:80])
    return offset


def _offsets(connector: Connector, options: Mapping[str, Any], tables: tuple[str, ...] = ()) -> Any:
    return _run("offsets", connector, options, tables)


def print_events(connector: Connector, now_ns: int, after_batch: int, tables: tuple[str, ...]) -> None:
    """Print the events in a connector's changes table; findings go to stderr.

    Args:
        connector: The connector declaration.
        now_ns: Time for event timestamps and the evaluation of TTLs, in ns since 1970.
        after_batch: Batches up to and including this one are skipped.
        tables: Only these tables; empty for all.
    """
    with tempfile.TemporaryDirectory(prefix="cdc-events-") as folder:
        lines = Path(folder) / "events.jsonl"
        options = {"path": str(lines), "now_ns": now_ns, "after_batch": after_batch}
        result = _run("events", connector, options, tables)
        with lines.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()
    for line in result.findings:
        write(line, sys.stderr)


def _run(
    stage: Literal["offsets", "events", "check_lake"],
    connector: Connector,
    options: Mapping[str, Any],
    tables: tuple[str, ...] = (),
) -> Any:
    """Run a stage on this machine and return its result."""
    from airflow_cdc_provider.connections.kafka import with_kafka
    from airflow_cdc_provider.hooks._of_connector import hook_for, with_secrets
    from airflow_cdc_provider.jobs.spec import ConnectionRef, JobSpec
    from airflow_cdc_provider.masking import masked
    from airflow_cdc_provider.tasks.failures import error_of
    from airflow_cdc_provider.tasks.run_folder import RunFolder, sweep

    sweep(Path(tempfile.gettempdir()), ["cdc-run-*"])
    with tempfile.TemporaryDirectory(prefix="cdc-run-") as temporary:
        folder = RunFolder(Path(temporary))
        values: dict[str, Any] = {}
        reference = ConnectionRef()
        if connector.source.conn_id:
            values = hook_for(connector).connection_values()
        values = with_kafka(connector, stage, with_secrets(connector, values))
        if values:
            reference = folder.write_connection(values)
        folder.write_spec(
            JobSpec(
                stage,
                connector.split_secrets()[0],
                str(folder.result_path),
                reference,
                tables,
                options,
            )
        )
        log = _submit(folder.spec_path)
        folder.remove_connection()
        result = folder.read_result()
    if result is None:
        tail = "\n".join(masked(log).splitlines()[-_MAX_LOG_LINES:])
        raise ConfigurationError("the Spark application ended without a result", found=f"\n{tail}")
    if not result.ok:
        raise error_of(result.error_code, result.error)
    return result


def _submit(spec: Path) -> str:
    """Run the application with ``spark-submit`` and return its output."""
    from airflow.providers.common.compat.sdk import conf

    from airflow_cdc_provider.tasks.spark_process import (
        APPLICATION,
        check_submit,
        search_path,
        short_lived_java,
    )

    check_submit("spark-submit", {}, search_path())
    jars = conf.get("cdc", "spark_jars", fallback="")
    submit = ["spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    submit += ["--jars", jars] if jars else []
    for setting in ("spark.pyspark.driver.python", "spark.pyspark.python"):
        submit += ["--conf", f"{setting}={sys.executable}"]
    completed = subprocess.run(
        [*submit, APPLICATION, str(spec)],
        env={**os.environ, "PATH": search_path(), "JDK_JAVA_OPTIONS": short_lived_java()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return completed.stdout
