"""The base of our triggers: look at something again and again until it is as wanted.

A trigger's :meth:`~ObservingTrigger.observe` is also what the plain sensor calls at each poke, so that plain
and deferred sensors can't differ in what they see.
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


@dataclass(frozen=True)
class Observation:
    """What was seen.

    Args:
        done: Whether it is as wanted.
        value: Numbers for XCom, JSON.
    """

    done: bool
    value: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """What an observation needs from Airflow, looked up afresh before each.

    Args:
        connection: Values of the source's connection.
        offset: The stored offset, None before the first run.
        snapshots: What runs told of snapshots (:mod:`airflow_cdc_provider.hooks.state`), None before the
            first.
        batches: Which batches runs told, likewise.
    """

    connection: Mapping[str, Any] = field(default_factory=dict)
    offset: Mapping[str, Any] | None = None
    snapshots: Mapping[str, Any] | None = None
    batches: Mapping[str, Any] | None = None


class ObservingTrigger(BaseTrigger):
    """Observes every ``poll_seconds`` and fires once.

    The event is ``{"status": "done", "value": ...}`` or ``{"status": "error", "code": ..., "text": ...}``. A
    :class:`~airflow_cdc_provider.exceptions.TransientError` is logged and waited out.

    Args:
        poll_seconds: Pause between observations, give or take a tenth.
        question: The subclass's arguments; JSON, no secrets.
    """

    def __init__(self, *, poll_seconds: float, **question: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        self.poll_seconds = poll_seconds
        self.question = question

    @abstractmethod
    async def observe(self, given: Given) -> Observation:
        """Look once.

        Args:
            given: What :meth:`given` gave.

        Raises:
            TransientError: Look again later.
            CdcError: Looking again is of no use.
        """

    async def given(self) -> Given:
        """Look up what :meth:`observe` needs."""
        return Given()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        own = type(self)
        return f"{own.__module__}.{own.__qualname__}", {"poll_seconds": self.poll_seconds, **self.question}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Observe until it is as wanted."""
        while True:
            try:
                seen = await self.observe(await self.given())
            except TransientError as error:
                self.log.warning("%s", error)
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
