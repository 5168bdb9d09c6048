"""Base of all operators that run a stage of a connector as a Spark application.

It writes a job spec and, in a separate file readable by its owner only, the source's connection; submits
``jobs/application.py`` by :class:`SparkSubmitOperator`; reads the result file; and reports the result to
Airflow: XCom, asset events, asset state, metrics, and the error's class.

Guarantees:

* No secret of a connection or of the declaration reaches the command line, a log, Spark's UI and event log,
    XCom or an error text. ``conf`` is on the command line, as of ``SparkSubmitOperator``.
* Killing a task stops its application (client and local mode: the process tree; cluster mode: as
    ``SparkSubmitOperator`` does).
* Clearing a task runs the stage again. After a lost worker a retry reconnects if Spark's cluster mode
    supports it.
* A Spark connection that does not exist is an error (``SparkSubmitOperator`` would fall back to YARN).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, conf

from airflow_cdc_provider.assets import changes_asset, mirror_asset, mirrors_alias
from airflow_cdc_provider.connections.kafka import with_kafka
from airflow_cdc_provider.connector.declaration import Connector, ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.hooks._of_connector import hook_for, with_secrets
from airflow_cdc_provider.hooks.source import CdcHook
from airflow_cdc_provider.jobs.spark.redaction import REDACTION, with_redaction
from airflow_cdc_provider.jobs.spec import ConnectionRef, JobResult, JobSpec, Stage
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.logs import MaskedLog, logger
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.tasks.failures import error_of, for_airflow
from airflow_cdc_provider.tasks.lineage import Lineage, as_openlineage, lineage_of
from airflow_cdc_provider.tasks.metrics import emit_failure, emit_metrics
from airflow_cdc_provider.tasks.notifications import following_notifications
from airflow_cdc_provider.tasks.parameters import TemplatedTask, known_name, to_mapping, to_tables
from airflow_cdc_provider.tasks.rendered_arguments import digest
from airflow_cdc_provider.tasks.run_folder import RunFolder
from airflow_cdc_provider.tasks.snapshot_rows import following_rows
from airflow_cdc_provider.tasks.spark_process import (
    APPLICATION,
    check_submit,
    kill,
    last_word,
    process_tree,
    search_path,
    short_lived_java,
)
from airflow_cdc_provider.tasks.state import store_failure, store_result, table_numbers
from airflow_cdc_provider.tasks.summary import MAX_XCOM_ITEMS, small_offset, summary
from airflow_cdc_provider.tasks.work_folder import safe_name, signals_folder

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context

_log = logger("airflow_cdc_provider.operators")

_SNAPSHOT_ROWS_KEY: Final = "snapshot_rows"
"""XCom key of the rows read of each table while a snapshot runs."""
_NOTIFICATIONS_KEY: Final = "notifications"
"""XCom key of the notifications that a job sent to channel ``airflow``."""


class SparkStageOperator(TemplatedTask, SparkSubmitOperator):
    """Runs one stage of a connector.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        tables: Only these tables: a list, or comma-separated text or a JSON list (templated); empty for all
            that the declaration selects.
        source_conn_id: Connection of the source instead of the declared one (templated).
        spark_conn_id: Connection of type ``spark``, which defines where the application runs.
        work_folder: Folder of spec and result (templated); default ``[cdc] work_folder``.
        keep_run_folder: Keep spec and result after success; the connection's values are always removed.
        jars: Jars for driver and executors, comma-separated (templated); default ``[cdc] spark_jars``.
        name: The application's name (templated); default ``cdc-<stage>-<connector>-<dag>-<run>``.
        application: The application to submit (templated); default: this package's application.
        kwargs: As for ``SparkSubmitOperator``: ``conf``, ``packages``, ``driver_memory``, ``deploy_mode`` ...
    """

    stage: ClassVar[Stage]
    captures: ClassVar[bool] = False
    """Whether the stage appends to the changes table, so that its asset gets an event. Other stages only read
    its state: a DAG that merges may be scheduled on the asset without triggering itself."""
    changes_mirrors: ClassVar[bool] = False
    """Whether the stage writes mirrors, so that tables get asset events."""

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "connector",
        "tables",
        "source_conn_id",
        "work_folder",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json", "conf": "json"}
    operator_extra_links = (ConnectorAssetsLink(),)
    ui_color = "#d9efe6"

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        tables: Sequence[str] | str = (),
        source_conn_id: str | None = None,
        spark_conn_id: str = "spark_default",
        work_folder: str | None = None,
        keep_run_folder: bool = False,
        jars: str | None = None,
        name: str | None = None,
        application: str | None = None,
        **kwargs: Any,
    ) -> None:
        known = known_name(connector)
        if known is not None:
            for side, assets in self._assets(known).items():
                kwargs[side] = [*(kwargs.get(side) or ()), *assets]
        super().__init__(conn_id=spark_conn_id, jars=jars, **kwargs)
        # Without a value they stay None, which the page of rendered templates omits.
        self.name = name  # type: ignore[assignment]
        self.application = application  # type: ignore[assignment]
        self.connector = connector
        self.tables = tables
        self.source_conn_id = source_conn_id
        self.spark_conn_id = spark_conn_id
        self.work_folder = work_folder
        self.keep_run_folder = keep_run_folder
        self._lineage = Lineage()
        self._reported = True  # an invalid declaration has no state to store

    @cached_property
    def source_hook(self) -> CdcHook:
        """The hook of the connector's source."""
        return hook_for(to_connector(self.connector), self.source_conn_id)

    def options(self) -> Mapping[str, Any]:
        """Return the stage's options; called after templates are rendered.

        Raises:
            ConfigurationError: An option is invalid.
        """
        return {}

    def accepts(self, result: JobResult) -> bool:
        """Return whether the task succeeds with a result that isn't ok."""
        return False

    def execute(self, context: Context) -> Any:
        """Run the stage.

        Returns:
            The XCom value: counts, offset, lag, per table.

        Raises:
            AirflowFailException: A configuration change is required.
            CdcError: A retry may help.
        """
        try:
            return self._run(context)
        except CdcError as error:
            if not self._reported:
                store_failure(context, to_connector(self.connector), self.stage, error)
            raise for_airflow(error) from None

    def _get_hook(self) -> SparkSubmitHook:
        """Return the hook, which logs masked lines: Airflow knows no encodings of secrets.

        It finds the application's id and exit code in the lines as Spark wrote them.
        """
        hook = super()._get_hook()
        hook._log = MaskedLog(hook.log)  # type: ignore[assignment]
        return hook

    def submit_job(self, context: Context) -> str | None:
        """Submit in cluster mode, after removing an earlier try's result."""
        self._folder.discard_result()
        return super().submit_job(context)

    def on_kill(self) -> None:
        """Stop the application."""
        process = getattr(self._hook, "_submit_sp", None)
        started = process_tree(process.pid) if process is not None and process.poll() is None else []
        super().on_kill()
        for one in started:
            kill(one)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the tables that the run read and wrote, for Airflow's OpenLineage provider.

        Args:
            task_instance: The ended task instance; unused.
        """
        del task_instance
        return as_openlineage(self._lineage)

    def announce(self, context: Context, connector: Connector, result: JobResult) -> None:
        """Emit metrics and asset events."""
        emit_metrics(connector, self.stage, result)
        events: Any = context.get("outlet_events")
        if events is None or not self.outlets:
            return
        about = {"stage": self.stage, "run_id": context["dag_run"].run_id}
        if self.captures:
            events[changes_asset(connector)].extra = {
                **about,
                "changes": result.changes,
                "batches": result.batches,
                "lag_seconds": result.lag_seconds,
                "offset": small_offset(result.offset),
            }
        if self.changes_mirrors:
            for table in result.tables:
                if table.rows_written or table.rows_removed:
                    mirror = mirror_asset(connector, table.table)
                    events[mirrors_alias(connector)].add(mirror, extra={**about, **table_numbers(table)})

    def _run(self, context: Context) -> dict[str, Any]:
        connector = to_connector(self.connector)
        self._reported = False
        self._check_spark()
        run, instance = context["dag_run"], context["ti"]
        self._folder = RunFolder.open(
            self.work_folder,
            connector.name,
            run.dag_id,
            run.run_id,
            f"{instance.task_id}.{instance.map_index}",
        )
        if not self._reconnects(context):
            self._folder.discard_result()
        self._fill_submit(connector, run.dag_id, run.run_id)
        values = self._write_job(connector)
        failure: Exception | None = None
        try:
            with (
                following_rows(self._folder.rows_path, connector, self._rows_to_xcom(context)),
                following_notifications(
                    self._folder.notifications_path, connector, self._notifications_to_xcom(context)
                ),
            ):
                super().execute(context)
        except CdcError:
            raise
        except Exception as error:  # noqa: BLE001  # the job's own result is more specific; evaluated below
            failure = error
        finally:
            self._folder.remove_connection()
        result = self._judge(self._folder.read_result(), failure)
        if result.ok or result.offset is not None:
            store_result(context, connector, self.stage, result)
            self._reported = True
            try:
                self._lineage = lineage_of(
                    connector,
                    values,
                    result,
                    captures=self.captures,
                    changes_mirrors=self.changes_mirrors,
                )
                self.announce(context, connector, result)
            except Exception:  # noqa: BLE001  # its trace is in the log
                _log.exception("the job has done its work, but its result can't be reported")
        else:
            emit_failure(connector, result)
        self._clear_submission(context)
        if not result.ok and not self.accepts(result):
            if result.tables and self.do_xcom_push:
                # The results of the other tables; a failed task returns nothing.
                context["ti"].xcom_push("return_value", summary(connector, self.stage, result))
            raise error_of(result.error_code, result.error)
        if not self.keep_run_folder:
            self._folder.remove()
        for finding in result.findings:
            _log.warning("%s", finding)
        return summary(connector, self.stage, result)

    def _rows_to_xcom(self, context: Context) -> Callable[[Mapping[str, int]], None] | None:
        """Return a callback that pushes the rows read of each table to XCom while a snapshot runs."""
        if not self.do_xcom_push:
            return None

        def push(rows: Mapping[str, int]) -> None:
            context["ti"].xcom_push(_SNAPSHOT_ROWS_KEY, dict(list(rows.items())[-MAX_XCOM_ITEMS:]))

        return push

    def _notifications_to_xcom(self, context: Context) -> Callable[[list[dict[str, Any]]], None] | None:
        """Return a callback that pushes the job's notifications to XCom as they arrive."""
        if not self.do_xcom_push:
            return None
        return lambda values: context["ti"].xcom_push(_NOTIFICATIONS_KEY, values[-MAX_XCOM_ITEMS:])

    def _write_job(self, connector: Connector) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.source_conn_id or connector.source.conn_id:
            values = self.source_hook.connection_values()
        values = with_kafka(connector, self.stage, with_secrets(connector, values))
        reference = ConnectionRef(file=str(self._folder.connection_path)) if values else ConnectionRef()
        self._folder.write_spec(
            JobSpec(
                stage=self.stage,
                connector=connector.split_secrets()[0],
                result_path=str(self._folder.result_path),
                connection=reference,
                tables=to_tables(self.tables),
                options=self._job_options(connector),
                secrets=digest(connector),
            )
        )
        if values:  # at last: nothing may fail before they are removed
            self._folder.write_connection(values, outlives_task=not self._runs_here())
        return values

    def _job_options(self, connector: Connector) -> dict[str, Any]:
        """Return the stage's options, with those that all capturing stages need."""
        if self.stage not in ("sync", "capture", "stream"):
            return dict(self.options())
        return {**self.options(), "signals_path": str(signals_folder(self.work_folder, connector.name))}

    def _fill_submit(self, connector: Connector, *run: str) -> None:
        self.application = self.application or APPLICATION
        self.application_args = [str(self._folder.spec_path)]
        self.name = self.name or safe_name("-".join(["cdc", self.stage, connector.name, *run]))
        self.jars = self.jars or conf.get("cdc", "spark_jars", fallback="") or None
        self.conf = {**(self.conf or {}), REDACTION: with_redaction((self.conf or {}).get(REDACTION, ""))}
        if not self._runs_here():
            return
        # The driver, and with a local master its workers, use this Python; spark-submit may be next to it.
        settings = dict(self.conf or {})
        local = self._spark_master().startswith("local")
        settings.setdefault("spark.pyspark.driver.python", sys.executable)
        settings.setdefault("spark.log.level", "WARN")  # Spark's own lines would bury the job's
        if local:
            settings.setdefault("spark.pyspark.python", sys.executable)
        self.conf = settings
        variables = dict(self.env_vars or {})
        if self._starts_with_our_environment():
            variables.setdefault("PATH", search_path())
            if local and self.stage != "stream":
                variables.setdefault("JDK_JAVA_OPTIONS", short_lived_java())
        self.env_vars = variables

    def _check_spark(self) -> None:
        for name in ("conf", "env_vars"):
            given = to_mapping(name, getattr(self, name)) or {}
            setattr(self, name, {key: str(value) for key, value in given.items()})
        try:
            self._spark_connection = BaseHook.get_connection(self.spark_conn_id)
        except AirflowNotFoundException as error:
            raise ConfigurationError(
                f"there is no Spark connection {self.spark_conn_id}",
                expected="a connection of type spark",
                remedy=f"airflow connections add {self.spark_conn_id} --conn-type spark --conn-host local[2]",
            ) from error
        binary = self._spark_binary or self._spark_connection.extra_dejson.get("spark-binary")
        path = search_path() if self._starts_with_our_environment() else os.environ.get("PATH", os.defpath)
        check_submit(binary or "spark-submit", self.env_vars or {}, path)

    def _spark_master(self) -> str:
        return self._spark_connection.host or ""

    def _runs_here(self) -> bool:
        mode = self._deploy_mode or self._spark_connection.extra_dejson.get("deploy-mode") or "client"
        return bool(mode == "client")

    def _starts_with_our_environment(self) -> bool:
        """Return whether ``env_vars`` apply to the submitting process, not to YARN or Kubernetes."""
        managed = ("yarn", "k8s")
        connection = self._spark_connection
        return self._runs_here() and not (
            self._spark_master().startswith(managed) or str(connection.conn_type).startswith(managed)
        )

    def _reconnects(self, context: Context) -> bool:
        store: Any = context.get("task_state_store")
        return store is not None and bool(self.durable) and store.get(self.external_id_key) is not None

    def _clear_submission(self, context: Context) -> None:
        # Otherwise a cleared task would find the ended application's id and not run.
        store: Any = context.get("task_state_store")
        if store is not None:
            store.delete(self.external_id_key)

    def _judge(self, result: JobResult | None, failure: Exception | None) -> JobResult:
        if result is not None and (failure is None or not result.ok):
            return result
        if failure is not None:
            if isinstance(failure, ValueError):
                raise ConfigurationError("the application can't be submitted", found=str(failure))
            raise CdcError(
                "the Spark application failed",
                found=last_word(masked(str(failure))),
                remedy="its whole output is above in this log",
            )
        raise ConfigurationError(
            "the Spark application ended without a result",
            expected=f"file {self._folder.result_path}",
            remedy="the work folder must be one that Airflow's workers and Spark's driver share",
        )

    @classmethod
    def _assets(cls, connector: str) -> dict[str, list[Any]]:
        changes = [changes_asset(connector)]
        mirrors = [mirrors_alias(connector)] if cls.changes_mirrors else []
        if cls.captures:
            return {"inlets": [], "outlets": [*changes, *mirrors]}
        return {"inlets": changes, "outlets": mirrors}
