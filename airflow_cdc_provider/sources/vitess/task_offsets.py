"""Assigns shards to tasks, and migrates the offsets of tasks when their number changes.

Debezium's connector for Vitess can store one offset per task, with only the task's shards. Its rules:

* Shards are assigned round robin, in the order of their names: with four shards and two tasks the first task
has
  ``-40`` and ``80-c0``. There are never more tasks than shards.
* The key of a task's offset is ``taskI_N_G``: task I of N in generation G. A new number of tasks requires the
  next generation. An offset without a key belongs to generation 0 with one task.
* For each shard an offset of the current generation takes precedence over one of the previous generation, and
  that over the configured position.

This module is stricter where Debezium would silently resume from a wrong position: a generation has one
number of tasks, the previous number of tasks must match the stored offsets, and an unfinished copy keeps its
last keys when it is migrated to another generation. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

_KEY: Final = re.compile(r"task(\d+)_(\d+)_(\d+)")


@dataclass(frozen=True, order=True)
class TaskKey:
    """Key of a task's offset.

    Args:
        generation: Generation, from 0.
        tasks: Number of tasks in the generation.
        task: Index of the task, from 0.
    """

    generation: int
    tasks: int
    task: int

    def __str__(self) -> str:
        """Return the key in Debezium's format."""
        return f"task{self.task}_{self.tasks}_{self.generation}"

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Parse a key; an empty text is the key of the only task of generation 0.

        Raises:
            ConfigurationError: The text isn't a key.
        """
        found = _KEY.fullmatch(text or "task0_1_0")
        if found is None:
            raise ConfigurationError(
                "not a valid key of a task's offset", expected="such as task0_2_1", found=text
            )
        task, tasks, generation = map(int, found.groups())
        return cls(generation, tasks, task)


@dataclass(frozen=True)
class ShardOffset:
    """The stored offset of a shard.

    Args:
        gtid: Its GTID set; ``current`` or empty if there is none yet.
        epoch: Its epoch, None if none is stored.
        copying: The tables whose copy is unfinished, with the last key of each, in the format of a VGTID.
    """

    gtid: str
    epoch: int | None = None
    copying: tuple[Mapping[str, Any], ...] = ()


Shards = Mapping[str, ShardOffset]
"""By ``keyspace/shard``."""


@dataclass(frozen=True)
class Layout:
    """How tasks store their offsets.

    Args:
        generation: The current generation.
        max_tasks: Maximum number of tasks.
        previous_tasks: Number of tasks in the previous generation.
    """

    generation: int
    max_tasks: int
    previous_tasks: int

    def tasks(self, shards: Collection[str]) -> int:
        """Return the number of tasks for some shards."""
        return min(self.max_tasks, len(shards))


def assign_shards(shards: Iterable[str], tasks: int) -> list[tuple[str, ...]]:
    """Assign shards to tasks; omit tasks without shards."""
    names = sorted(shards)
    return [tuple(names[task::tasks]) for task in range(min(tasks, len(names)))]


def newest(stored: Mapping[TaskKey, Shards]) -> Shards:
    """Return the offsets of the last generation, if the current one isn't configured.

    Raises:
        ConfigurationError: The generation is incomplete: the previous one would have the rest.
    """
    generation = max(key.generation for key in stored)
    tasks = _one_number_of_tasks(stored, generation)
    return _of_generation(stored, generation, tasks, must_be_complete=True)


def migrated(
    stored: Mapping[TaskKey, Shards], layout: Layout, topology: Collection[str], configured: Shards
) -> dict[TaskKey, dict[str, ShardOffset]]:
    """Return the start offsets of the tasks of the current generation.

    Stored shards that no longer exist belong to a connector that didn't run during a reshard. VTGate follows
    the journal of the reshard from there, so all stored shards are kept unchanged.

    Args:
        stored: Stored offsets of the tasks of all generations.
        layout: The current generation.
        topology: The existing shards, ``keyspace/shard``.
        configured: Start positions of shards without a stored offset.

    Raises:
        ConfigurationError: There is a new generation although nothing has changed, the number of tasks
            differs from the stored offsets, offsets of the previous generation are missing or have more
            shards than exist, or a shard has no position.
    """
    generation, tasks = layout.generation, layout.tasks(topology)
    now = set(topology)
    before: Shards = {}
    if generation > 0:
        _require_number_of_tasks(stored, generation - 1, layout.previous_tasks)
        before = _of_generation(stored, generation - 1, layout.previous_tasks, must_be_complete=True)
        if set(before) > now:
            raise ConfigurationError(
                "the previous generation has more shards than exist: their positions would be lost",
                expected=", ".join(sorted(now)),
                found=", ".join(sorted(before)),
            )
        require_change(layout, before, now)
    _require_number_of_tasks(stored, generation, tasks)
    current = _of_generation(stored, generation, tasks, must_be_complete=False)
    if not set(current) <= now:
        current = _of_generation(stored, generation, tasks, must_be_complete=True)
    names = now
    for known in (current, before):
        if known:
            names = now if set(known) <= now else set(known)
            break
    positions = {**configured, **before, **current}
    if missing := sorted(names - set(positions)):
        raise ConfigurationError(
            f"there is no start position of {', '.join(missing)}",
            expected="a stored offset, or source.start_at with all shards",
            found="none",
        )
    return {
        TaskKey(generation, tasks, task): {shard: positions[shard] for shard in assignment}
        for task, assignment in enumerate(assign_shards(names, tasks))
    }


def require_change(layout: Layout, before: Collection[str], now: Collection[str]) -> None:
    """Reject a new generation with the same number of tasks and the same shards.

    Raises:
        ConfigurationError: Nothing has changed.
    """
    tasks = layout.tasks(now)
    if tasks == layout.previous_tasks and set(before) == set(now):
        raise ConfigurationError(
            f"generation {layout.generation} has as many tasks and the same shards as the previous one",
            expected="another number of tasks, or the previous generation",
            found=f"{tasks} tasks",
        )


def _of_generation(
    stored: Mapping[TaskKey, Shards], generation: int, tasks: int, *, must_be_complete: bool
) -> dict[str, ShardOffset]:
    keys = [TaskKey(generation, tasks, task) for task in range(tasks)]
    missing = [str(key) for key in keys if key not in stored]
    if missing and must_be_complete:
        raise ConfigurationError(
            f"offsets of generation {generation} are missing",
            expected=", ".join(map(str, keys)),
            found=f"none of {', '.join(missing)}",
        )
    found: dict[str, ShardOffset] = {}
    for key in keys:
        for shard, offset in stored.get(key, {}).items():
            if shard in found:
                raise ConfigurationError(
                    f"two offsets of generation {generation} contain shard {shard}",
                    expected="each shard in one task",
                    found=", ".join(str(key) for key in keys if shard in stored.get(key, {})),
                )
            found[shard] = offset
    return found


def _numbers_of_tasks(stored: Mapping[TaskKey, Shards], generation: int) -> Sequence[int]:
    return sorted({key.tasks for key in stored if key.generation == generation})


def _one_number_of_tasks(stored: Mapping[TaskKey, Shards], generation: int) -> int:
    numbers = _numbers_of_tasks(stored, generation)
    if len(numbers) > 1:
        raise ConfigurationError(
            f"generation {generation} was used with several numbers of tasks",
            expected="a new generation for each",
            found=", ".join(map(str, numbers)),
            remedy="remove the offsets that are no longer used",
        )
    return numbers[0]


def _require_number_of_tasks(stored: Mapping[TaskKey, Shards], generation: int, tasks: int) -> None:
    """Reject a number of tasks that differs from the stored offsets of a generation."""
    if not _numbers_of_tasks(stored, generation):
        return
    if (number := _one_number_of_tasks(stored, generation)) != tasks:
        raise ConfigurationError(
            f"generation {generation} has offsets of another number of tasks",
            expected=str(number),
            found=str(tasks),
            remedy="set source.task_offsets.previous_tasks (vitess.prev.num.tasks) to the number of tasks "
            "that actually ran; a new number of tasks needs the next generation",
        )
