"""CRC-32 (IEEE, as in zlib) for kernels, sixteen bytes at a time.

``zlib.crc32`` is as fast, but needs a Python object per entry. This is the slicing-by-16 algorithm: table
``15 - i`` has the CRC of byte ``i`` of a group followed by zeros, and the sixteen results are xor-ed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.formats.byte_kernels import OFFSET
from airflow_cdc_provider.formats.kernels import Bytes, Int, walker

_POLYNOMIAL: Final = 0xEDB88320


def _tables() -> NDArray[np.uint32]:
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for number in range(1, 16):
        before = tables[number - 1]
        tables[number] = tables[0][before & 0xFF] ^ before >> 8
    return tables


_T: Final = _tables()


@walker
def _word(data: Bytes, at: Int) -> Int:
    at &= OFFSET
    return (
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@walker
def crc32(data: Bytes, at: Int, length: Int, start: Int) -> Int:
    """Return the CRC-32 of bytes, continued from ``start`` (0 for none), as a non-negative int64."""
    crc = np.uint32(start) ^ np.uint32(0xFFFFFFFF)
    low = np.uint32(0xFF)
    end = at + length
    while end - at >= 16:
        a, b, c, d = _word(data, at) ^ crc, _word(data, at + 4), _word(data, at + 8), _word(data, at + 12)
        crc = (
            _T[15, a & low]
            ^ _T[14, a >> np.uint32(8) & low]
            ^ _T[13, a >> np.uint32(16) & low]
            ^ _T[12, a >> np.uint32(24)]
            ^ _T[11, b & low]
            ^ _T[10, b >> np.uint32(8) & low]
            ^ _T[9, b >> np.uint32(16) & low]
            ^ _T[8, b >> np.uint32(24)]
            ^ _T[7, c & low]
            ^ _T[6, c >> np.uint32(8) & low]
            ^ _T[5, c >> np.uint32(16) & low]
            ^ _T[4, c >> np.uint32(24)]
            ^ _T[3, d & low]
            ^ _T[2, d >> np.uint32(8) & low]
            ^ _T[1, d >> np.uint32(16) & low]
            ^ _T[0, d >> np.uint32(24)]
        )
        at += 16
    while at < end:
        crc = crc >> np.uint32(8) ^ _T[0, (crc ^ np.uint32(data[at])) & low]
        at += 1
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))
