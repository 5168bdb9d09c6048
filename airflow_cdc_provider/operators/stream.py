"""Operator that keeps a connector's continuous application running.

The application is a separate process that outlives the task: detached on this worker's machine (client and
local mode; use a permanent worker, not a pod), or on the cluster. A task starts it or adopts the running one.
A lock on its folder ensures that there is one per connector. Airflow then monitors it, preferably deferred,
without a worker slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf

from airflow_cdc_provider.connector.declaration import to_connector
from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.regular_files import APPEND, open_regular
from airflow_cdc_provider.tasks.debezium_gauges import emit_debezium_gauges
from airflow_cdc_provider.tasks.failures import error_of, for_airflow
from airflow_cdc_provider.tasks.rendered_arguments import digest
from airflow_cdc_provider.tasks.run_folder import RunFolder, unwritable
from airflow_cdc_provider.tasks.spark_process import kill, last_word, process_tree
from airflow_cdc_provider.tasks.stream_application import Health, StreamFolder
from airflow_cdc_provider.tasks.work_folder import stream_folder

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector

_log = logger("airflow_cdc_provider.operators")

_LOG_TAIL_BYTES = 4000


class CdcStreamOperator(SparkStageOperator):
    """Starts or adopts the continuous application of a connector, and monitors it.

    An application that runs with another declaration is stopped and restarted. Killing the task leaves it
    running unless ``stop_on_kill``; a later run adopts it. Before its first heartbeat it is killed with its
    task, except on a cluster.

    XCom: ``adopted``, ``status``, ``pid``, ``host``, ``started_at`` and its counts.

    Args:
        commit_interval_seconds: Time from the start of one round to the next: each round is a commit.
        max_runtime_seconds: The application stops normally after this time; the next run starts a new one.
        wait: Monitor it until it ends. If false, the task ends after the application's first heartbeat, and a
            :class:`~airflow_cdc_provider.sensors.stream.CdcStreamHealthSensor` can monitor it.
        max_lag_seconds: Fail the task if the lag is greater; None for no limit.
        heartbeat_timeout_seconds: The longest allowed time between heartbeats: longer than its longest round.
        start_timeout_seconds: The longest allowed start, including a cluster's queue.
        stop_on_kill: Stop the application when a user kills this task.
        deferrable: Monitor in the triggerer; default ``[operators] default_deferrable``.
        poll_seconds: Pause between checks.
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "stream"

    def __init__(
        self,
        *,
        commit_interval_seconds: float = 30.0,
        max_runtime_seconds: float = 86_400.0,
        wait: bool = True,
        max_lag_seconds: float | None = None,
        heartbeat_timeout_seconds: float = 900.0,
        start_timeout_seconds: float = 300.0,
        stop_on_kill: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_seconds: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.commit_interval_seconds = commit_interval_seconds
        self.max_runtime_seconds = max_runtime_seconds
        self.wait = wait
        self.max_lag_seconds = max_lag_seconds
        self.heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self.start_timeout_seconds = start_timeout_seconds
        self.stop_on_kill = stop_on_kill
        self.deferrable = deferrable
        self.poll_seconds = poll_seconds
        self._killed = False

    def options(self) -> Mapping[str, Any]:
        """Return the stage's options."""
        folder = self._stream_folder()
        return {
            "commit_interval_seconds": self.commit_interval_seconds,
            "max_runtime_seconds": self.max_runtime_seconds,
            "state_path": str(folder.state_path),
            "stop_path": str(folder.stop_path),
        }

    def execute(self, context: Context) -> Any:
        """Start or adopt the application, then monitor it.

        Raises:
            AirflowFailException: A configuration change is required.
            CdcError: The application failed, is dead, silent or behind; a retry starts or adopts it.
        """
        try:
            adopted = self._start_or_adopt(to_connector(self.connector))
            if not self.wait:
                return {"adopted": adopted, **self._health().numbers()}
            if self.deferrable:
                self._defer(adopted)
            return {"adopted": adopted, **self._watch()}
        except CdcError as error:
            raise for_airflow(error) from None

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None, adopted: bool = False
    ) -> Any:
        """Handle the trigger's event."""
        if event is None:
            raise TransientError("the trigger ended without an event")
        if event["status"] == "error":
            raise for_airflow(error_of(event["code"], event["text"]))
        emit_debezium_gauges(to_connector(self.connector), event["value"].get("metrics", {}))
        return {"adopted": adopted, **event["value"]}

    def on_kill(self) -> None:
        """Stop the application if ``stop_on_kill``."""
        self._killed = True
        if self.stop_on_kill:
            self._stream_folder().request_stop()

    def _start_or_adopt(self, connector: Connector) -> bool:
        self._check_spark()
        folder = self._stream_folder()
        self._folder = RunFolder.open(self.work_folder, connector.name, "stream")
        with _exclusive(folder, self.start_timeout_seconds):
            health = self._health()
            spec = self._spec(connector)
            if health.alive:
                if _same(folder, spec):
                    _log.info(
                        "Adopting the continuous application of %s: %s", connector.name, health.numbers()
                    )
                    self._folder.remove_connection()  # of a task that was killed
                    return True
                _log.warning("Stopping the application of %s: its declaration changed", connector.name)
                self._stop(folder)
            self._start(connector, folder, remains=health.status == "absent")
            return False

    def _start(self, connector: Connector, folder: StreamFolder, *, remains: bool) -> None:
        for path in (folder.state_path, folder.stop_path):
            path.unlink(missing_ok=True)
        self._folder.discard_result()
        self._fill_submit(connector)
        if not self._runs_here():
            # The submitting process needn't wait: the application's state file reports its status.
            self.conf = {
                "spark.yarn.submit.waitAppCompletion": "false",
                "spark.kubernetes.submission.waitAppCompletion": "false",
                **(self.conf or {}),
            }
        hook = self._get_hook()
        command = hook._build_spark_submit_command(self.application)
        for one in folder.processes(str(self.application)) if remains else ():
            _log.warning("Killing process %s of a start whose task was killed", one.pid)
            kill(one)
        if folder.log_path.exists():
            folder.log_path.replace(folder.log_path.with_name("stream.previous.log"))
        try:
            output = open_regular(folder.log_path, APPEND, 0o600)
        except OSError as error:
            raise unwritable(folder.path, error) from error
        try:
            self._write_job(connector)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(hook._env or {})},
                start_new_session=True,
            )
        except BaseException:
            self._folder.remove_connection()
            raise
        finally:
            os.close(output)
        _log.info("Started the continuous application of %s; its log is %s", connector.name, folder.log_path)
        try:
            self._await_heartbeat(folder, process)
        except BaseException:  # also of a task that is killed
            for one in [*process_tree(process.pid), *folder.processes(str(self.application))]:
                kill(one)
            if self._runs_here() or not self._killed:  # else a later run adopts what starts on the cluster
                self._folder.remove_connection()
            raise
        self._folder.remove_connection()

    def _await_heartbeat(self, folder: StreamFolder, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_timeout_seconds
        while self._health().status == "absent":
            if process.poll() not in (None, 0) or (process.poll() == 0 and self._runs_here()):
                result = self._folder.read_result()
                if result is not None and not result.ok:
                    raise error_of(result.error_code, result.error)
                raise error_of("", f"the application ended during its start: {_tail(folder)}")
            if self._killed:
                raise TransientError("the task was killed while the continuous application started")
            if time.monotonic() > deadline:
                raise TransientError(
                    "the continuous application sent no heartbeat",
                    expected=f"file {folder.state_path} within {self.start_timeout_seconds:.0f} s",
                    found=_tail(folder),
                )
            time.sleep(0.5)

    def _stop(self, folder: StreamFolder) -> None:
        folder.request_stop()
        deadline = time.monotonic() + self.start_timeout_seconds
        while self._health().alive:
            if time.monotonic() > deadline:
                raise TransientError(
                    "the continuous application doesn't stop", found=str(self._health().numbers())
                )
            time.sleep(0.5)

    def _watch(self) -> dict[str, Any]:
        folder = self._stream_folder()
        while not self._killed:
            health = self._health()
            failure = folder.failure(health, self.max_lag_seconds)
            emit_debezium_gauges(to_connector(self.connector), health.state.get("metrics", {}))
            if failure is not None:
                raise failure
            if health.status == "stopped":
                return health.numbers()
            until = time.monotonic() + self.poll_seconds
            while time.monotonic() < until and not self._killed:
                time.sleep(min(0.5, self.poll_seconds))
        raise TransientError("the task was killed")

    def _defer(self, adopted: bool) -> None:
        from airflow_cdc_provider.triggers.stream import StreamHealthTrigger

        self.defer(
            trigger=StreamHealthTrigger(
                folder=str(self._stream_folder().path),
                heartbeat_timeout_seconds=self.heartbeat_timeout_seconds,
                max_lag_seconds=self.max_lag_seconds,
                stop_on_kill=self.stop_on_kill,
                poll_seconds=self.poll_seconds,
            ),
            method_name="execute_complete",
            kwargs={"adopted": adopted},
            timeout=self.execution_timeout or timedelta(seconds=self.max_runtime_seconds * 2 + 3600),
        )

    def _spec(self, connector: Connector) -> Mapping[str, Any]:
        return {
            "connector": connector.split_secrets()[0],
            "options": self._job_options(connector),
            "secrets": digest(connector),
        }

    def _health(self) -> Health:
        return self._stream_folder().health(self.heartbeat_timeout_seconds)

    def _stream_folder(self) -> StreamFolder:
        return stream_folder(self.work_folder, to_connector(self.connector).name)


@contextlib.contextmanager
def _exclusive(folder: StreamFolder, patience_seconds: float) -> Iterator[None]:
    """Hold the folder's lock, which is released at the latest when this process ends."""
    deadline = time.monotonic() + patience_seconds
    with open(open_regular(folder.path / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"another task is starting the application in {folder.path}"
                    ) from None
                time.sleep(0.2)
        yield


def _same(folder: StreamFolder, spec: Mapping[str, Any]) -> bool:
    try:
        running = JobSpec.from_json(folder.spec_path.read_text())
    except (OSError, ValueError, CdcError):
        return False
    return all(getattr(running, name) == value for name, value in spec.items())


def _tail(folder: StreamFolder) -> str:
    try:
        return last_word(masked(folder.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")))
    except OSError:
        return "no log"
