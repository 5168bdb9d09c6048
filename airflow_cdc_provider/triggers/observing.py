"""The base of our triggers: look at something again and again until it is as wanted.

A trigger's :meth:`~ObservingTrigger.observe` is also what the plain sensor calls at each poke, so that plain and
deferred sensors can't differ in what they see.
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


class ObservingTrigger(BaseTrigger):
    """Observes every ``poll_seconds`` and fires once.

    The event is ``{"status": "done", "value": ...}`` or ``{"status": "error", "code": ..., "text": ...}``. A
    :class:`~airflow_cdc_provider.exceptions.TransientError` is logged and waited out.

    Args:
        poll_seconds: Pause between observations, give or take a tenth.
        question: The subclass's arguments; JSON, no secrets.
    """

    def __init__(self, *, poll_seconds: float, **question: Any) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds
        self.question = question

    @abstractmethod
    async def observe(self, connection: Mapping[str, Any]) -> Observation:
        """Look once.

        Args:
            connection: What :meth:`connection` gave.

        Raises:
            TransientError: Look again later.
            CdcError: Looking again is of no use.
        """

    async def connection(self) -> Mapping[str, Any]:
        """Return the values of the connection that :meth:`observe` needs."""
        return {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        own = type(self)
        return f"{own.__module__}.{own.__qualname__}", {"poll_seconds": self.poll_seconds, **self.question}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Observe until it is as wanted."""
        connection: Mapping[str, Any] | None = None
        while True:
            try:
                if connection is None:
                    connection = await self.connection()
                seen = await self.observe(connection)
            except TransientError as error:
                self.log.warning("%s", error)
                connection = None  # it may have been corrected meanwhile
            except CdcError as error:
                yield TriggerEvent({"status": "error", "code": error.code, "text": str(error)})
                return
            else:
                if seen.done:
                    yield TriggerEvent({"status": "done", "value": seen.value})
                    return
            await asyncio.sleep(self.poll_seconds * random.uniform(0.9, 1.1))  # noqa: S311  # only to spread load
