"""Structured values out of any bytes, so that a mutation of the bytes is one of the structure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads choices from bytes; at their end each choice is the first one.

    Args:
        data: The input.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        found = self._data[self._at : self._at + count]
        self._at += len(found)
        return found

    def rest(self) -> bytes:
        """Return all unread bytes."""
        return self.take(self.left)

    def byte(self) -> int:
        """Return a number below 256."""
        return self.take(1)[0] if self.left else 0

    def one_of(self, options: Sequence[T]) -> T:
        """Return one of some options."""
        return options[self.byte() % len(options)]

    def chunk(self) -> bytes:
        """Return a value with its length before it: a byte, or 0xFF and two bytes."""
        length = self.byte()
        return self.take(int.from_bytes(self.take(2), "big") if length == 0xFF else length)

    def text(self) -> str:
        """Return a chunk as text."""
        return self.chunk().decode(errors="replace")

    def integer(self, bits: int) -> int:
        """Return a signed number: a small one, one at the edge of a power of two, or any."""
        kind = self.byte()
        if kind < 0xC0:
            return kind - 0x60
        if kind < 0xE0:
            edge = 1 << (self.byte() % bits)
            return max(-(1 << bits - 1), min((1 << bits - 1) - 1, (edge, edge - 1, -edge)[kind % 3]))
        return int.from_bytes(self.take(bits // 8).ljust(bits // 8, b"\0"), "big", signed=True)

    def double(self) -> float:
        """Return any double."""
        return float(struct.unpack(">d", self.take(8).ljust(8, b"\0"))[0])

    def some(self, most: int, choose: Callable[[], T]) -> list[T]:
        """Return up to ``most`` values."""
        return [choose() for _ in range(min(self.byte() % (most + 1), self.left))]

    def damaged(self, data: bytes) -> bytes:
        """Overwrite, cut or extend valid bytes in a few places; most often in none."""
        out = bytearray(data)
        for _ in range(self.byte() % 8 - 4):
            at = int.from_bytes(self.take(2), "big") % (len(out) + 1)
            kind = self.byte() % 4
            if kind == 0:
                out[at : at + 1] = self.take(1)
            elif kind == 1:
                del out[at : at + self.byte()]
            elif kind == 2:
                out[at:at] = self.chunk()
            else:
                out[at : at + 4] = self.take(4)
        return bytes(out)


def chunk(data: bytes) -> bytes:
    """Write what :meth:`Choices.chunk` reads."""
    return (bytes([len(data)]) if len(data) < 0xFF else b"\xff" + struct.pack(">H", len(data))) + data
