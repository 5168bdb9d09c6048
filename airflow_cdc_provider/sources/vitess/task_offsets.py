"""Which task reads which shards, and what becomes of tasks' offsets when their number changes.

Debezium's connector for Vitess may keep an offset per task, of its own shards alone. The rules are its own:

* Shards are dealt out round robin, in the order of their names: of four shards and two tasks the first has
  ``-40`` and ``80-c0``. There are never more tasks than shards.
* The key of a task's offset is ``taskI_N_G``: task I of N in generation G. A new number of tasks needs the
  next generation. An offset without such a key counts as generation 0, of one task.
* Per shard an offset of the present generation wins over one of the generation before, and that over what is
  configured.

Here they are stricter where Debezium's would go on from a wrong place without a word: a generation has one
number of tasks, the number of tasks before must be what is stored, and a copy that isn't finished keeps its
last keys when it moves to another generation. Pure.
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
    """Whose offset it is.

    Args:
        generation: From 0.
        tasks: How many tasks there are in it.
        task: From 0.
    """

    generation: int
    tasks: int
    task: int

    def __str__(self) -> str:
        """Write it as Debezium does."""
        return f"task{self.task}_{self.tasks}_{self.generation}"

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Read a key; an empty one is that of the only task of generation 0.

        Raises:
            ConfigurationError: It is none.
        """
        found = _KEY.fullmatch(text or "task0_1_0")
        if found is None:
            raise ConfigurationError(
                "this is no key of a task's offset", expected="such as task0_2_1", found=text
            )
        task, tasks, generation = map(int, found.groups())
        return cls(generation, tasks, task)


@dataclass(frozen=True)
class ShardOffset:
    """What is stored of a shard.

    Args:
        gtid: Its GTID set; ``current`` or empty where there is none yet.
        epoch: Its epoch, None where none is stored.
        copying: The tables whose copy isn't finished, with the last key of each, as a VGTID has them.
    """

    gtid: str
    epoch: int | None = None
    copying: tuple[Mapping[str, Any], ...] = ()


Shards = Mapping[str, ShardOffset]
"""By ``keyspace/shard``."""


@dataclass(frozen=True)
class Layout:
    """How tasks are to keep their offsets.

    Args:
        generation: The present generation.
        most_tasks: How many tasks there may be.
        previous_tasks: How many there were in the generation before.
    """

    generation: int
    most_tasks: int
    previous_tasks: int

    def tasks(self, shards: Collection[str]) -> int:
        """Return how many tasks there are for some shards."""
        return min(self.most_tasks, len(shards))


def shares(shards: Iterable[str], tasks: int) -> list[tuple[str, ...]]:
    """Deal out shards to tasks; tasks without any are left out."""
    names = sorted(shards)
    return [tuple(names[task::tasks]) for task in range(min(tasks, len(names)))]


def newest(stored: Mapping[TaskKey, Shards]) -> Shards:
    """Return what the last generation's tasks have stored, where nothing tells which one is present.

    Raises:
        ConfigurationError: It isn't whole: the generation before would have the rest.
    """
    generation = max(key.generation for key in stored)
    tasks = _one_number_of_tasks(stored, generation)
    return _of_generation(stored, generation, tasks, must_be_whole=True)


def migrated(
    stored: Mapping[TaskKey, Shards], layout: Layout, topology: Collection[str], configured: Shards
) -> dict[TaskKey, dict[str, ShardOffset]]:
    """Return the offsets that the tasks of the present generation begin with.

    Shards that were stored and aren't listed any more are those of a connector that was off during a reshard:
    VTGate goes over the reshard's journal from there, so all stored shards are kept as they are.

    Args:
        stored: What tasks have stored, of all generations.
        layout: The present generation.
        topology: The shards that there are, ``keyspace/shard``.
        configured: Where shards begin of which nothing is stored.

    Raises:
        ConfigurationError: Nothing has changed though there is a new generation, its tasks were others in
            number before, offsets of the generation before are missing, they have more shards than there
            are, or there is no place for a shard.
    """
    generation, tasks = layout.generation, layout.tasks(topology)
    now = set(topology)
    before: Shards = {}
    if generation > 0:
        _require_number_of_tasks(stored, generation - 1, layout.previous_tasks)
        before = _of_generation(stored, generation - 1, layout.previous_tasks, must_be_whole=True)
        if set(before) > now:
            raise ConfigurationError(
                "the generation before has more shards than there are: their places would be lost",
                expected=", ".join(sorted(now)),
                found=", ".join(sorted(before)),
            )
        require_change(layout, before, now)
    _require_number_of_tasks(stored, generation, tasks)
    current = _of_generation(stored, generation, tasks, must_be_whole=False)
    if not set(current) <= now:
        current = _of_generation(stored, generation, tasks, must_be_whole=True)
    names = now
    for known in (current, before):
        if known:
            names = now if set(known) <= now else set(known)
            break
    places = {**configured, **before, **current}
    if missing := sorted(names - set(places)):
        raise ConfigurationError(
            f"there is no place to begin at in {', '.join(missing)}",
            expected="a stored offset, or source.start_at with all shards",
            found="none",
        )
    return {
        TaskKey(generation, tasks, task): {shard: places[shard] for shard in share}
        for task, share in enumerate(shares(names, tasks))
    }


def require_change(layout: Layout, before: Collection[str], now: Collection[str]) -> None:
    """Refuse a new generation with as many tasks as before of the same shards.

    Raises:
        ConfigurationError: With their number.
    """
    tasks = layout.tasks(now)
    if tasks == layout.previous_tasks and set(before) == set(now):
        raise ConfigurationError(
            f"generation {layout.generation} has as many tasks and the same shards as the one before",
            expected="another number of tasks, or the generation as it was",
            found=f"{tasks} tasks",
        )


def _of_generation(
    stored: Mapping[TaskKey, Shards], generation: int, tasks: int, *, must_be_whole: bool
) -> dict[str, ShardOffset]:
    keys = [TaskKey(generation, tasks, task) for task in range(tasks)]
    missing = [str(key) for key in keys if key not in stored]
    if missing and must_be_whole:
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
                    f"two offsets of generation {generation} tell of shard {shard}",
                    expected="each shard of one task",
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
            remedy="leave out the offsets that are no longer in use",
        )
    return numbers[0]


def _require_number_of_tasks(stored: Mapping[TaskKey, Shards], generation: int, tasks: int) -> None:
    """Refuse another number of tasks than a generation's offsets are of."""
    if not _numbers_of_tasks(stored, generation):
        return
    if (number := _one_number_of_tasks(stored, generation)) != tasks:
        raise ConfigurationError(
            f"generation {generation} has offsets of another number of tasks",
            expected=str(number),
            found=str(tasks),
            remedy="source.task_offsets.previous_tasks (vitess.prev.num.tasks) is the number of tasks that "
            "really ran; a new number of tasks needs the next generation",
        )
