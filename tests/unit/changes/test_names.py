from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.names import number_names


@given(st.lists(st.lists(st.binary(max_size=3), min_size=2, max_size=2), max_size=40))
def test_equal_names_have_one_number_and_its_first_event(names: list[list[bytes]]) -> None:
    data = np.frombuffer(b"".join(part for name in names for part in name), np.uint8)
    ends = np.cumsum([len(part) for name in names for part in name], dtype=np.int64).reshape(-1, 2)
    starts = ends - np.array([[len(part) for part in name] for name in names], np.int64).reshape(-1, 2)
    places = np.stack([starts[:, 0], ends[:, 0], starts[:, 1], ends[:, 1]])

    numbers, firsts = number_names(data, places)

    distinct = list(dict.fromkeys(map(tuple, names)))
    assert [distinct[number] for number in numbers] == list(map(tuple, names))
    assert firsts == [list(map(tuple, names)).index(name) for name in distinct]


def test_there_is_room_for_any_number_of_names() -> None:
    count = 5_000
    data = np.frombuffer(b"".join(b"%04d" % n for n in range(count)) * 2, np.uint8)
    starts = np.arange(2 * count, dtype=np.int64) * 4
    numbers, firsts = number_names(data, np.stack([starts, starts + 4]))
    assert firsts == list(range(count))
    assert numbers.tolist() == list(range(count)) * 2
