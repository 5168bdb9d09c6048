"""Base of our sensors: plain and deferred they use the same trigger, and so behave the same.

In both modes they keep polling a server that doesn't answer until the sensor's ``timeout``, and an error that
requires a configuration change fails the task without retries.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.tasks.failures import error_of, for_airflow
from airflow_cdc_provider.tasks.parameters import TemplatedTask

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.triggers.observing import Given, ObservingTrigger

_log = logger("airflow_cdc_provider.sensors")


class ObservingSensor(TemplatedTask, BaseSensorOperator):
    """Waits with an :class:`~airflow_cdc_provider.triggers.observing.ObservingTrigger`.

    Args:
        deferrable: Wait in the triggerer instead of in a worker slot; default ``[operators]
            default_deferrable``.
        kwargs: As for ``BaseSensorOperator``: ``poke_interval``, ``timeout``, ``mode``, ``soft_fail`` ...
    """

    ui_color = "#e6f1f2"
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json"}

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    @abstractmethod
    def trigger(self, context: Context) -> ObservingTrigger:
        """Return the trigger; called after templates are rendered.

        Raises:
            ConfigurationError: An argument is invalid.
        """

    def given(self, context: Context) -> Given:
        """Return the inputs of the trigger's observation."""
        from airflow_cdc_provider.triggers.observing import Given

        return Given()

    def seen(self, value: Mapping[str, Any]) -> None:
        """Handle an observation, for example emit metrics."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Observe once."""
        try:
            found = asyncio.run(self.trigger(context).observe(self.given(context)))
        except TransientError as error:
            _log.warning("%s", error)
            return PokeReturnValue(False)
        except CdcError as error:
            raise for_airflow(error) from None
        self.seen(found.value)
        return PokeReturnValue(found.done, found.value)

    def execute(self, context: Context) -> Any:
        """Wait; defer after a first unsuccessful observation."""
        if not self.deferrable:
            return super().execute(context)
        first = self._first_look(context)
        if first:
            return first.xcom_value
        self.defer(
            trigger=self.trigger(context),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        return None

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Handle the trigger's event.

        Raises:
            AirflowFailException: A configuration change is required.
            CdcError: A retry may help.
        """
        if event is None:
            raise TransientError("the trigger ended without an event")
        if event["status"] == "error":
            raise for_airflow(error_of(event["code"], event["text"]))
        self.seen(event["value"])
        return event["value"]

    def _first_look(self, context: Context) -> PokeReturnValue:
        """Observe as the plain sensor's loop does, honouring soft_fail, never_fail and silent_fail."""
        try:
            return self.poke(context)
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException("skipped because the sensor may not fail") from error
            raise
        except CdcError as error:
            if self.silent_fail:
                _log.warning("%s", error)
                return PokeReturnValue(False)
            if self.never_fail:
                raise AirflowSkipException("skipped because the sensor may not fail") from error
            raise
