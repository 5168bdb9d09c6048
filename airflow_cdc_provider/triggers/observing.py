"""Base of our triggers: observe repeatedly until a condition holds.

The plain sensor also calls a trigger's :meth:`~ObservingTrigger.observe` at each poke, so that plain and
deferred sensors have the same result.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.logs import logger

_log = logger("airflow_cdc_provider.triggers")


@dataclass(frozen=True)
class Observation:
    """Result of an observation.

    Args:
        done: Whether the condition holds.
        value: Numbers for XCom, JSON.
    """

    done: bool
    value: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """Inputs of an observation from Airflow, looked up before each one.

    Args:
        connection: Values of the source's connection.
        offset: The stored offset; None before the first run.
        snapshots: The snapshots that runs reported (:mod:`airflow_cdc_provider.tasks.state`); None before the
            first.
        batches: The batches that runs reported; None before the first.
    """

    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    offset: Mapping[str, Any] | None = None
    snapshots: Mapping[str, Any] | None = None
    batches: Mapping[str, Any] | None = None


class ObservingTrigger(BaseTrigger):
    """Observes every ``poll_seconds`` and fires once.

    The event is ``{"status": "done", "value": ...}`` or ``{"status": "error", "code": ..., "text": ...}``.
    After a :class:`~airflow_cdc_provider.exceptions.TransientError`, which is logged, it observes again.

    Args:
        poll_seconds: Pause between observations, plus or minus 10 %.
        arguments: The subclass's arguments; JSON, no secrets.
    """

    def __init__(self, *, poll_seconds: float, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        self.poll_seconds = poll_seconds
        self.arguments = arguments

    @abstractmethod
    async def observe(self, given: Given) -> Observation:
        """Observe once.

        Args:
            given: The result of :meth:`given`.

        Raises:
            TransientError: The observation can be repeated later.
            CdcError: Repeating the observation doesn't help.
        """

    async def given(self) -> Given:
        """Return the inputs of :meth:`observe`."""
        return Given()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        own = type(self)
        return f"{own.__module__}.{own.__qualname__}", {"poll_seconds": self.poll_seconds, **self.arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Observe until the condition holds."""
        while True:
            try:
                seen = await self.observe(await self.given())
            except TransientError as error:
                _log.warning("%s", error)
            except CdcError as error:
                yield _event({"status": "error", "code": error.code, "text": str(error)})
                return
            else:
                if seen.done:
                    yield _event({"status": "done", "value": seen.value})
                    return
            await asyncio.sleep(self.poll_seconds * random.uniform(0.9, 1.1))  # noqa: S311  # only to spread load


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
