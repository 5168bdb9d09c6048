"""The fast path for VGTIDs: it agrees with Position.after, and covers all common cases."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.following import follow
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition, vgtid_shards
from tests.chance import examples
from tests.unit.sources.vitess.fake_vtgate import fields, gtid, response, rows, transaction, vgtid
from tests.unit.sources.vitess.stream_capture import NONE_KNOWN, records_of

SHARDS = ["shop/-80", "shop/80-"]
ONE, TWO = (f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "ab")

usual_sets = st.builds(
    lambda first, gap, last, more: f"MySQL56/{ONE}:1-{first}:{first + gap}-{first + gap + last},{TWO}:{more}",
    st.integers(1, 50),
    st.integers(2, 5),
    st.integers(0, 50),
    st.sampled_from(["1", "1-3", "2-7:9"]),
)
odd_sets = st.sampled_from(
    [
        "",
        "current",
        f"MySQL56/{ONE}:1-3",
        f"MySQL56/{ONE}:tag:1-3,{TWO}:5",
        f"MySQL56/{ONE.upper()}:1-90,{TWO}:5",
        f"MySQL56/{ONE}:1-90, {TWO}:5",
        f"MySQL56/{ONE}:5-90:1-3,{TWO}:5",
        f"MySQL56/{TWO}:5,{ONE}:1-90",
        f"MySQL56/{ONE}:1-90,{ONE}:1-90",
        f"MySQL56/{ONE}:1-90,",
        f"MySQL56/{ONE}:1-9999999999999999,{TWO}:5",
        "MariaDB/0-1-7",
        "MySQL56/",
        f"MySQL56/{ONE}:x",
    ]
)


def followed(before: bytes, messages: Sequence[bytes], shards: Sequence[int]) -> Any:
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    data = np.frombuffer(b"".join(messages), np.uint8)
    return data, follow(before, data, starts, ends, np.array(shards, np.int64), SHARDS)


def test_all_usual_transactions_are_followed() -> None:
    steps = [("-80", 11, 20, 0), ("-80", 12, 20, 0), ("80-", 12, 25, 1), ("-80", 19, 25, 0)]
    messages = [vgtid({"-80": low, "80-": high}).SerializeToString() for _, low, high, _ in steps]
    before = vgtid({"-80": 10, "80-": 20}).SerializeToString()

    data, found = followed(before, messages, [number for *_, number in steps])

    assert found.counts.tolist() == [11, 12, 25, 19]
    sets = [data[a:b].tobytes().decode() for a, b in zip(found.starts, found.ends, strict=True)]
    assert sets == [gtid(11), gtid(12), gtid(25), gtid(19)]


@settings(max_examples=examples(300))
@given(
    usual_sets,
    st.lists(st.tuples(st.integers(0, 1), usual_sets | odd_sets, st.integers(0, 1)), min_size=1, max_size=5),
)
def test_the_fast_path_agrees_with_the_position(first: str, steps: list[tuple[int, str, int]]) -> None:
    """Each step changes the set of a shard; the transaction may be of the other one."""
    sets = dict.fromkeys(["-80", "80-"], first)
    before = vgtid(dict(sets)).SerializeToString()
    place = Position({shard: ShardPosition(first, 1) for shard in SHARDS})
    messages, expected = [], []
    for changed, text, _ in steps:
        sets["80-" if changed else "-80"] = text
        messages.append(vgtid(dict(sets)).SerializeToString())
    for message, (_, _, own) in zip(messages, steps, strict=True):
        try:
            after, _ = place.after(vgtid_shards(message))
            old, new = place.shards[SHARDS[own]].set, after.shards[SHARDS[own]].set
        except CorruptInput:
            break
        others = [s for s in SHARDS if after.shards[s].gtid != place.shards[s].gtid]
        if after.shards[SHARDS[own]].epoch != place.shards[SHARDS[own]].epoch or others != [SHARDS[own]]:
            break
        if new.count <= old.count:
            break
        expected.append(new.count)
        place = after

    data, found = followed(before, messages, [own for *_, own in steps])

    assert len(found) <= len(expected)
    assert found.counts.tolist() == expected[: len(found)]
    texts = [data[a:b].tobytes().decode() for a, b in zip(found.starts, found.ends, strict=True)]
    assert [GtidSet.parse(text).count for text in texts] == found.counts.tolist()


@pytest.mark.parametrize("size", range(0, 90, 7))
def test_no_truncated_message_is_read_beyond_its_end(size: int) -> None:
    before = vgtid({"-80": 10, "80-": 20}).SerializeToString()
    message = vgtid({"-80": 11, "80-": 20}).SerializeToString()

    _, found = followed(before, [message[:size]], [0])

    assert len(found) == 0


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.booleans())
def test_many_responses_together_give_the_records_that_they_give_one_by_one(
    chance: random.Random, at_once: int, cuts_often: bool
) -> None:
    """Both shards, repeated transactions, a new server, fields again and again."""
    last = {"-80": 10, "80-": 20}
    responses = []
    reported: dict[str, int | str] = {}
    for number in range(60):
        shard = chance.choice(["-80", "80-"])
        last[shard] += chance.choice([0, 1, 1, 1, 1, 3])
        reported = {**last}
        if number > 40:  # a second server has taken over
            reported["-80"] = f"{gtid(last['-80'])},{gtid(number, 'bb').partition('/')[2]}"
        inside = [fields("item", shard)] if number < 4 or chance.random() < 0.1 else []
        change = rows("item", shard, (None, [str(number), "x"]))
        events = transaction(shard, reported, *inside, *([change] if number >= 4 else []))
        border = chance.randrange(len(events) + 1)
        responses += [response(*events[:border]), response(*events[border:])]

    def assemble(size: int) -> tuple[pa.Table, Position, int]:
        place = Position({"shop/-80": ShardPosition(gtid(10), 1), "shop/80-": ShardPosition(gtid(20), 1)})
        assembler = TransactionAssembler(
            place,
            slice_bytes=1 if cuts_often else 1 << 20,
            keep_empty=True,
            stops_at_journals=False,
            **NONE_KNOWN,
        )
        for first in range(0, len(responses), size):
            assembler.add_all(responses[first : first + size], 1)
        slices, schema_records = assembler.drain(1)
        records = records_of(slices, schema_records, empty=True)
        return (
            records.sort_by([("origin", "ascending"), ("position", "ascending")]),
            assembler.position,
            assembler.repeated,
        )

    together, one_by_one = assemble(at_once), assemble(1)

    assert together[0].equals(one_by_one[0])
    assert together[1:] == one_by_one[1:]
