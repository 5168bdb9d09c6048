"""GTID sets: the transactions that a MySQL server has executed, as VTGate writes them.

The formats, prefixed by the flavor::

    MySQL56/<uuid>[:<tag>]:<interval>[:<interval> ...][,<uuid>:...]     interval: n or n-m
    MariaDB/<domain>-<server>-<sequence>[,...]

A MySQL set lists all its transactions. A MariaDB set lists the last transaction of each domain and includes
all earlier ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Final

from airflow_cdc_provider.exceptions import CorruptInput

CURRENT: Final = "current"
"""Placeholder for the current position of the server."""

Intervals = tuple[tuple[int, int], ...]

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_INTERVAL: Final = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_MARIADB: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,19})")
_MOST: Final = (1 << 63) - 1
"""Transactions in a set: positions count them in 64 bits."""


def is_real(gtid: str) -> bool:
    """Return whether a shard's position is a GTID set, and not ``current`` or empty."""
    return gtid not in ("", CURRENT)


@dataclass(frozen=True)
class GtidSet:
    """A set of transactions.

    Args:
        flavor: ``MySQL56`` or ``MariaDB``.
        servers: Transaction intervals by server and tag (MariaDB: by domain): first and last number of each
            interval, ascending, without overlap.
        last_servers: MariaDB: the server of the last transaction of each domain.
    """

    flavor: str
    servers: Mapping[str, Intervals]
    last_servers: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parse a set.

        Raises:
            CorruptInput: The text has no supported format, or more than 63 bits of transactions.
        """
        return _parse(text)

    @property
    def rank(self) -> int:
        """The sum of the last numbers of all servers, as Debezium ranks transactions."""
        return sum(intervals[-1][1] for intervals in self.servers.values())

    @property
    def count(self) -> int:
        """The number of transactions, which grows with each commit, even with one that fills a gap.

        Equal to the rank if the set has no gaps.
        """
        return sum(last - first + 1 for intervals in self.servers.values() for first, last in intervals)

    def contains(self, other: GtidSet) -> bool:
        """Return whether it has all transactions of another set."""
        return self.flavor == other.flavor and all(
            _covers(self.servers.get(server, ()), intervals) for server, intervals in other.servers.items()
        )

    def has_servers_of(self, other: GtidSet) -> bool:
        """Return whether it has all servers of another set."""
        return set(other.servers) <= set(self.servers)

    def union(self, other: GtidSet) -> GtidSet:
        """Return the union with another set of the same flavor."""
        if self.flavor != other.flavor:
            raise ValueError(f"can't unite sets of flavors {self.flavor} and {other.flavor}")
        servers = {
            server: _merged(self.servers.get(server, ()) + other.servers.get(server, ()))
            for server in {**self.servers, **other.servers}
        }
        later = {
            domain: server
            for domain, server in other.last_servers.items()
            if other.servers[domain][-1][1] > self.servers.get(domain, ((0, -1),))[-1][1]
        }
        return GtidSet(self.flavor, servers, {**self.last_servers, **later})

    def __str__(self) -> str:
        """Write the set as VTGate does."""
        if self.flavor == "MariaDB":
            sets = [f"{d}-{self.last_servers[d]}-{i[-1][1]}" for d, i in sorted(self.servers.items())]
        else:
            sets = [
                ":".join([server, *(f"{a}-{b}" if b > a else str(a) for a, b in intervals)])
                for server, intervals in sorted(self.servers.items())
            ]
        return f"{self.flavor}/{','.join(sets)}"


@lru_cache(maxsize=4096)
def _parse(text: str) -> GtidSet:
    flavor, slash, rest = text.partition("/")
    servers: dict[str, list[tuple[int, int]]] = {}
    last: dict[str, str] = {}
    if not slash or flavor not in ("MySQL56", "MariaDB"):
        raise _invalid(text)
    for part in filter(None, (part.strip() for part in rest.split(","))):
        if flavor == "MariaDB":
            if (found := _MARIADB.fullmatch(part)) is None or found[1] in servers:
                raise _invalid(text)
            servers[found[1]] = [(1, int(found[3]))]
            last[found[1]] = found[2]
            continue
        server, *words = part.lower().split(":")
        if not _UUID.fullmatch(server) or not words:
            raise _invalid(text)
        name = server
        for word in words:
            if (interval := _INTERVAL.fullmatch(word)) is not None:
                first = int(interval[1])
                end = int(interval[2] or first)
                if not 1 <= first <= end:
                    raise _invalid(text)
                servers.setdefault(name, []).append((first, end))
            elif _TAG.fullmatch(word):
                name = f"{server}:{word}"
            else:
                raise _invalid(text)
    found_set = GtidSet(flavor, {name: _merged(tuple(found)) for name, found in servers.items()}, last)
    if found_set.count > _MOST:
        raise _invalid(text)
    return found_set


def _merged(intervals: Intervals) -> Intervals:
    if len(intervals) < 2 or all(a[1] + 1 < b[0] for a, b in pairwise(intervals)):
        return intervals
    joined: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _covers(outer: Intervals, inner: Intervals) -> bool:
    """Return whether each inner interval lies in the last outer one that begins before it."""
    nearest = ((last, bisect_right(outer, first, key=itemgetter(0)) - 1) for first, last in inner)
    return all(at >= 0 and last <= outer[at][1] for last, at in nearest)


def _invalid(text: str) -> CorruptInput:
    return CorruptInput(
        "not a valid position of a Vitess shard",
        expected="MySQL56/<uuid>:<n>-<m>,... or MariaDB/<domain>-<server>-<sequence>,...",
        found=text[:200] or "an empty text",
    )
