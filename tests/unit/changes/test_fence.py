from __future__ import annotations

from airflow_cdc_provider.changes.fence import (
    Fence,
    add_fence,
    fences_from_json,
    fences_to_json,
    generation_at,
)


def test_only_what_follows_a_fence_in_its_own_feed_belongs_to_the_new_generation() -> None:
    fences = add_fence(add_fence((), "a", b"\x05"), "a", b"\x09")

    assert [generation_at(fences, "a", p) for p in (b"\x05", b"\x06", b"\x09", b"\x0a")] == [0, 1, 1, 2]
    assert generation_at(fences, "b", b"\xff") == 0


def test_fence_without_origin_holds_for_every_feed() -> None:
    fences = (Fence(1, "", b"\x05"),)

    assert generation_at(fences, "any", b"\x06") == 1


def test_fence_seen_twice_changes_nothing() -> None:
    once = add_fence((), "a", b"\x05")

    assert add_fence(once, "a", b"\x05") == once


def test_fences_survive_their_text() -> None:
    fences = add_fence(add_fence((), "ä", b"\x00\xff"), "", b"")

    assert fences_from_json(fences_to_json(fences)) == fences
