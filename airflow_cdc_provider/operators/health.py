"""Operator that reports a connector's health in one task, without Spark.

It checks the reader, which is the continuous application or the last run: whether it is alive, its position,
the age of its last commit. It also checks a session with the source: whether the server answers, and how
fast.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_cdc_provider import __version__
from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import PERMANENT, CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.hooks._of_connector import hook_for
from airflow_cdc_provider.operators._on_connector import ConnectorOperator
from airflow_cdc_provider.tasks.failures import error_of
from airflow_cdc_provider.tasks.metrics import emit_health
from airflow_cdc_provider.tasks.parameters import one_of
from airflow_cdc_provider.tasks.state import last_run, with_state
from airflow_cdc_provider.tasks.work_folder import stream_folder

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector

_READERS: Final = ("auto", "stream", "runs")
_STREAMS_ROUND_SECONDS: Final = 900.0


@dataclass(frozen=True)
class _Observed:
    """Numbers and problems of a reader or a session."""

    numbers: Mapping[str, Any]
    problems: Sequence[CdcError] = ()


class CdcHealthOperator(ConnectorOperator):
    """Reports the health of a connector's reader and its session with the source; fails if one is unhealthy.

    XCom, also of a failed task: ``version`` of this package; ``ok``; ``problems``, a list of messages;
    ``reader``: ``kind`` (``stream`` or ``runs``), ``status``, ``offset``, ``committed_at`` and
    ``commit_age_seconds`` of the newest commit, ``reported_at`` and ``silent_seconds``, lag and counts;
    ``session``: ``server``, ``requests``, ``errors``, response times, and for Cassandra ``nodes`` and
    ``nodes_down``.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        reader: The reader to check: ``stream``, ``runs``, or ``auto`` for the one with the latest report.
        max_silent_seconds: The longest allowed time since the reader's last report. A stream reports after
            each round, a run when it ends. None: 900 for a stream, no limit for runs.
        max_commit_age_seconds: The greatest allowed age of the newest commit; None for no limit. A source
            without changes has no commits.
        max_lag_seconds: The greatest allowed lag; None for no limit.
        max_response_seconds: The greatest allowed response time of the server; None for no limit.
        probes: The number of requests to the server.
        source_conn_id: Connection of the source instead of the declared one (templated).
        work_folder: As for the operator that started the stream (templated).
        kwargs: As for ``BaseOperator``.

    Example::

        CdcHealthOperator(task_id="health", connector="/opt/cdc/shop.yaml", max_commit_age_seconds=3600)
    """

    template_fields: Sequence[str] = ("connector", "source_conn_id", "work_folder")

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        reader: Literal["auto", "stream", "runs"] = "auto",
        max_silent_seconds: float | None = None,
        max_commit_age_seconds: float | None = None,
        max_lag_seconds: float | None = None,
        max_response_seconds: float | None = None,
        probes: int = 5,
        source_conn_id: str | None = None,
        work_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(connector=connector, **with_state(connector, kwargs))
        self.reader = reader
        self.max_silent_seconds = max_silent_seconds
        self.max_commit_age_seconds = max_commit_age_seconds
        self.max_lag_seconds = max_lag_seconds
        self.max_response_seconds = max_response_seconds
        self.probes = probes
        self.source_conn_id = source_conn_id
        self.work_folder = work_folder

    def perform(self, context: Context) -> dict[str, Any]:
        """Check once.

        Raises:
            ConfigurationError: A configuration change is required; the message lists all problems.
            CdcError: The problem may be temporary.
        """
        connector = to_connector(self.connector)
        if self.probes < 1:
            raise ConfigurationError(
                "invalid value for option probes", expected="at least 1", found=str(self.probes)
            )
        reader, session = self._look_at_reader(context, connector), self._look_at_session(connector)
        problems = [*reader.problems, *session.problems]
        report = {
            "connector": connector.name,
            "version": __version__,
            "ok": not problems,
            "problems": [str(problem) for problem in problems],
            "reader": {"ok": not reader.problems, **reader.numbers},
            "session": {"ok": not session.problems, **session.numbers},
        }
        emit_health(connector, report)
        if not problems:
            return report
        if self.do_xcom_push:
            context["ti"].xcom_push("return_value", report)  # a failed task returns nothing
        raise _combined(connector, problems)

    def _look_at_reader(self, context: Context, connector: Connector) -> _Observed:
        kind = one_of("reader", self.reader, _READERS)
        folder = stream_folder(self.work_folder, connector.name)
        silent_at_most = self.max_silent_seconds or _STREAMS_ROUND_SECONDS
        health = folder.health(silent_at_most)
        run = last_run(context, connector)
        run_at = datetime.fromisoformat(run["at"]).timestamp() if run else 0.0
        if kind == "auto":
            newer = float(health.state.get("heartbeat_at", 0.0)) > run_at
            kind = "stream" if health.alive or (health.state and newer) else "runs"
        state, status, reported_at = run, _status(run), run_at or None
        problems = self._problems_of(connector, run, run_at) if kind == "runs" else []
        if kind == "stream":
            state, status, reported_at = health.state, health.status, health.state.get("heartbeat_at")
            failure = folder.failure(health)
            problems = [failure] if failure else []
        names = ("stage", "rounds", "batch", "batches", "changes", "lag_seconds", "lag_bytes", "error")
        committed_at = state.get("committed_at")
        numbers = {
            "kind": kind,
            "status": status,
            "reported_at": reported_at,
            "silent_seconds": None if reported_at is None else _since(reported_at),
            "offset": state.get("offset"),
            "committed_at": committed_at,
            "commit_age_seconds": None if committed_at is None else _since(committed_at),
            **{name: state[name] for name in names if state.get(name) not in (None, "")},
        }
        return _Observed(numbers, [*problems, *self._beyond_limits(connector, numbers)])

    def _problems_of(self, connector: Connector, run: Mapping[str, Any], run_at: float) -> list[CdcError]:
        if not run:
            return [
                TransientError(
                    f"connector {connector.name} has no state in Airflow",
                    expected="a run that has ended, or a stream",
                    remedy="run its DAG; if it has run, check that it names the same connector",
                )
            ]
        problems: list[CdcError] = []
        if not run["ok"]:
            problems.append(error_of("", str(run.get("error") or "the last run failed")))
        if self.max_silent_seconds is not None and _since(run_at) > self.max_silent_seconds:
            problems.append(
                TransientError(
                    f"no run of connector {connector.name} has ended recently",
                    expected=f"one within {self.max_silent_seconds:.0f} s",
                    found=f"the last one {_since(run_at):.0f} s ago",
                    remedy="check whether its DAG is paused, or its runs are stuck",
                )
            )
        return problems

    def _beyond_limits(self, connector: Connector, numbers: Mapping[str, Any]) -> list[CdcError]:
        problems: list[CdcError] = []
        age, lag = numbers["commit_age_seconds"], numbers.get("lag_seconds")
        oldest = self.max_commit_age_seconds
        if oldest is not None and (age is None or age > oldest):
            problems.append(
                TransientError(
                    f"the last commit of connector {connector.name} is too old",
                    expected=f"one within {oldest:.0f} s",
                    found="none" if age is None else f"the last one {age:.0f} s ago",
                    remedy="if the source has changes, read the log of its last run",
                )
            )
        if self.max_lag_seconds is not None and (lag or 0) > self.max_lag_seconds:
            problems.append(
                TransientError(
                    f"connector {connector.name} is behind its source",
                    expected=f"a lag of at most {self.max_lag_seconds:.0f} s",
                    found=f"{lag:.0f} s",
                )
            )
        return problems

    def _look_at_session(self, connector: Connector) -> _Observed:
        try:
            numbers = hook_for(connector, self.source_conn_id).session_state(self.probes)
        except CdcError as error:
            return _Observed({"error": str(error)}, [error])
        slowest = numbers["max_seconds"]
        if self.max_response_seconds is None or slowest <= self.max_response_seconds:
            return _Observed(numbers)
        slow = TransientError(
            f"the source of connector {connector.name} answers slowly",
            expected=f"a response within {self.max_response_seconds:g} s",
            found=f"{slowest:.3f} s",
        )
        return _Observed(numbers, [slow])


def _status(run: Mapping[str, Any]) -> str:
    if not run:
        return "absent"
    return "ok" if run["ok"] else "failed"


def _since(moment: float) -> float:
    return round(max(time.time() - moment, 0.0), 3)


def _combined(connector: Connector, problems: Sequence[CdcError]) -> CdcError:
    """Return one error for all problems, of the most severe one's class."""
    if len(problems) == 1:
        return problems[0]
    gravest = next((one for one in problems if isinstance(one, PERMANENT)), problems[0])
    texts = [str(one).removeprefix(f"[CDC-{one.code}] ") for one in problems]
    return type(gravest)(f"connector {connector.name} is unhealthy", found="; ".join(texts))
