from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.fence import (
    EVENT_US,
    MEMORY_US,
    Fence,
    FenceRecord,
    add_fences,
    fences_from_json,
    fences_to_json,
    generation_at,
    newest_event,
    newest_generation,
)

NOON_US = 1_795_000_000_000_000
SECOND_US = 1_000_000


def written(origin: str, position: int, seconds: float = 0.0) -> FenceRecord:
    return FenceRecord(origin, bytes([position]), NOON_US + int(seconds * SECOND_US))


def test_only_what_follows_a_fence_in_its_own_feed_belongs_to_the_new_generation() -> None:
    fences = add_fences((), [written("a", 5), written("a", 9, 100)])

    first, second = NOON_US, NOON_US + 100 * SECOND_US
    found = [generation_at(fences, "a", bytes([p])) for p in (5, 6, 9, 10)]
    assert found == [0, first, first, second]
    assert generation_at(fences, "b", b"\xff") == 0


def test_fence_without_origin_holds_for_every_feed() -> None:
    fences = (Fence(1, "", b"\x05", 1),)

    assert generation_at(fences, "any", b"\x06") == 1


def test_records_of_several_feeds_within_a_minute_are_one_event() -> None:
    fences = add_fences((), [written("a", 5), written("b", 200, 59)])

    assert {f.generation for f in fences} == {NOON_US}
    assert generation_at(fences, "b", b"\xc9") == generation_at(fences, "a", b"\x06")


def test_second_record_of_a_feed_is_another_event_however_soon() -> None:
    fences = add_fences((), [written("a", 5), written("a", 6, 0.001)])

    assert len({f.generation for f in fences}) == 2


def test_two_truncates_without_a_write_between_are_two_events() -> None:
    first = FenceRecord("a", b"\x05\x01", NOON_US)
    second = FenceRecord("a", b"\x05\x02", NOON_US + SECOND_US)

    assert len({f.generation for f in add_fences((), [first, second])}) == 2


def test_record_joins_the_nearest_event_in_reach() -> None:
    fences = add_fences((), [written("a", 5), written("a", 6, 10), written("a", 7, 20)])

    joined = add_fences(fences, [written("b", 1, 11)])

    assert generation_at(joined, "b", b"\x02") == NOON_US + 10 * SECOND_US


def test_late_event_in_the_middle_takes_nothing_from_what_came_after() -> None:
    fences = add_fences((), [written("a", 5), written("a", 9, 1000)])

    late = add_fences(fences, [written("a", 7, 500)])

    assert newest_event(late) == newest_event(fences)
    assert [generation_at(late, "a", bytes([p])) for p in (6, 10)] == [
        generation_at(fences, "a", bytes([p])) for p in (6, 10)
    ]


def test_clock_that_steps_back_leaves_the_order_of_positions() -> None:
    fences = add_fences(add_fences((), [written("a", 5)]), [written("a", 9, -3000)])

    assert generation_at(fences, "a", b"\x0a") > generation_at(fences, "a", b"\x06")
    assert generation_at(fences, "a", b"\x0a") == newest_generation(fences)


def test_fence_seen_twice_changes_nothing() -> None:
    once = add_fences((), [written("a", 5)])

    assert add_fences(once, [written("a", 5), written("a", 5, 3)]) == once


def test_event_long_past_is_forgotten_and_changes_nothing_when_it_is_seen_again() -> None:
    old = written("a", 5)
    fences = add_fences((), [old, written("a", 9, 2 * MEMORY_US / SECOND_US)])

    assert [f.position for f in fences] == [b"\x09"]
    assert add_fences(fences, [old]) == fences


def test_change_without_a_time_of_its_source_takes_that_of_its_capture() -> None:
    moment = dt.datetime(2026, 11, 20, 12, 0, 0, 500, tzinfo=dt.UTC)
    change = {"origin": "a", "position": bytearray(b"\x01"), "committed_at": None, "captured_at": moment}

    assert FenceRecord.of(change) == FenceRecord("a", b"\x01", int(moment.timestamp()) * SECOND_US + 500)


def test_fences_survive_their_text() -> None:
    fences = add_fences((), [FenceRecord("ä", b"\x00\xff", 7), FenceRecord("", b"", 9)])

    assert fences_from_json(fences_to_json(fences)) == fences


def test_record_of_all_feeds_is_an_event_of_its_own() -> None:
    fences = add_fences((), [FenceRecord("", b"", NOON_US), written("a", 5, 1)])

    assert [generation_at(fences, "a", bytes([p])) for p in (5, 6)] == [NOON_US, NOON_US + SECOND_US]


def test_late_record_distinguishes_an_event_from_its_neighbour() -> None:
    """Given one feed's first record and the other's second, which could be of one event."""
    fences = add_fences((), [written("a", 1), written("b", 2, 45)])
    assert len({f.generation for f in fences}) == 1

    fences = add_fences(fences, [written("a", 2, 45.1)])

    assert {f.origin for f in newest_event(fences)} == {"a", "b"}
    assert len({f.generation for f in fences}) == 2


def test_closest_records_are_of_one_event_where_others_are_missing() -> None:
    first, second = [written("a", 1, 0), written("a", 3, 18)], [written("b", 2, 9.5), written("b", 3, 18.5)]

    fences = add_fences((), [*first, *second])

    assert {(f.origin, f.position) for f in newest_event(fences)} == {("a", b"\x03"), ("b", b"\x03")}


RECORDS = st.lists(
    st.builds(
        lambda origin, event, jitter: FenceRecord(
            origin, bytes([event]), NOON_US + event * 3 * EVENT_US // 4 + jitter
        ),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 12),
        st.integers(0, 2 * EVENT_US),
    ),
    unique_by=lambda r: (r.origin, r.position),
)


@given(RECORDS, st.data())
def test_order_and_portions_in_which_records_arrive_make_no_difference(
    records: list[FenceRecord], data: st.DataObject
) -> None:
    fences: tuple[Fence, ...] = ()
    for record in data.draw(st.permutations(records)):
        fences = add_fences(fences, [record])

    assert fences == add_fences((), records)


@given(st.lists(st.integers(2, 200), max_size=8), st.data())
def test_clock_skew_below_the_time_between_truncates_identifies_all_events(
    seconds: list[int], data: st.DataObject
) -> None:
    """Given that each feed has a record of each event."""
    moments = [NOON_US + sum(seconds[: n + 1]) * SECOND_US for n in range(len(seconds))]
    jitter = st.integers(-SECOND_US // 3, SECOND_US // 3)
    records = [
        FenceRecord(origin, bytes([n]), moment + data.draw(jitter))
        for n, moment in enumerate(moments)
        for origin in "abc"
    ]

    fences = add_fences((), data.draw(st.permutations(records)))

    events: dict[int, list[tuple[str, bytes]]] = {}
    for fence in fences:
        events.setdefault(fence.generation, []).append((fence.origin, fence.position))
    assert [events[g] for g in sorted(events)] == [
        [(origin, bytes([n])) for origin in "abc"] for n in range(len(moments))
    ]
