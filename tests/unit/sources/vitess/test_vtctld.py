"""The first position from a fake vtctld; a real one is tested with the cluster's."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.source import VitessSource
from tests.unit.sources.vitess.fake_vtctld import FakeVtctld
from tests.unit.sources.vitess.fake_vtgate import FakeVtgate, Waits, event, gtid, response, vgtid


def standing(request: Any) -> list[bytes | Waits]:
    """VTGate reports 30 transactions of both shards."""
    shards: dict[str, int | str] = {s.shard: 30 for s in request.vgtid.shard_gtids}
    return [
        response(event("VGTID", shard, vgtid=vgtid(shards)), event("OTHER", shard)) for shard in shards
    ] + [Waits()]


ANSWERS: dict[str, list[tuple[str, ...]]] = {"SHOW VITESS_SHARDS": [("shop/-80",), ("shop/80-",)]}


def started(vtctld: FakeVtctld, tablet_type: Any = "PRIMARY", **extra: Any) -> Any:
    """Return where a capture begins whose connection names a vtctld."""
    with FakeVtgate([standing], ANSWERS) as vtgate:
        connection = vtgate.connection
        own = {"vtctld_host": "127.0.0.1", "vtctld_port": vtctld.port, **extra}
        options = VitessOptions(
            keyspace="shop", tablet_type=tablet_type, advanced=VitessAdvanced(call_timeout_seconds=5)
        )
        source = VitessSource(
            options, {**connection, "extra": {**connection["extra"], **own}}, lambda t: True
        )
        try:
            return source.start()
        finally:
            source.close()


@pytest.mark.covers("VIT-CON-06")
@pytest.mark.parametrize(("tablet_type", "places"), [("PRIMARY", (9, 19)), ("REPLICA", (6, 18))])
def test_a_capture_starts_at_the_position_of_the_tablets_of_the_type(
    tablet_type: str, places: tuple[int, int]
) -> None:
    with FakeVtctld() as vtctld:
        offset = started(vtctld, tablet_type)

    assert {shard: place["gtid"] for shard, place in offset.items()} == {
        "shop/-80": gtid(places[0]),
        "shop/80-": gtid(places[1]),
    }
    assert {place["epoch"] for place in offset.values()} == {1}
    assert vtctld.requested == [("shop", "-80"), ("shop", "80-")]
    assert "username" not in vtctld.metadata[0], "nothing is sent where no login is set"


@pytest.mark.covers("VIT-CON-06")
def test_vtctld_is_optional_and_its_port_has_a_default() -> None:
    assert ConnectionValues.read({"host": "vtgate"}).vtctld is None
    values = ConnectionValues.read({"host": "vtgate", "extra": {"vtctld_host": "vtctld"}})
    assert values.vtctld is not None
    assert (values.vtctld.host, values.vtctld.port) == ("vtctld", 15999)
    for wrong in ({"vtctld_port": 1}, {"vtctld_host": "x", "vtctld_password": "p"}):
        with pytest.raises(ConfigurationError, match="vtctld_"):
            ConnectionValues.read({"host": "vtgate", "extra": wrong})


@pytest.mark.covers("VIT-CON-07")
def test_login_and_password_are_only_sent_to_vtctld_and_never_printed() -> None:
    login = {"vtctld_login": "cdc", "vtctld_password": "s3cr3t-word"}
    with FakeVtctld(("cdc", "s3cr3t-word")) as vtctld:
        assert started(vtctld, **login)["shop/-80"]["gtid"] == gtid(9)
        assert {(m["username"], m["password"]) for m in vtctld.metadata} == {("cdc", "s3cr3t-word")}
        with pytest.raises(ConfigurationError, match="vtctld at") as refused:
            started(vtctld, **{**login, "vtctld_login": "other"})
    values = ConnectionValues.read({"host": "h", "extra": {"vtctld_host": "v", **login}})
    assert "s3cr3t" not in f"{refused.value} {values}"
    assert "s3cr3t" not in masked("VTGate said s3cr3t-word")


def test_a_type_without_a_position_is_reported() -> None:
    with FakeVtctld() as vtctld, pytest.raises(TransientError, match="no position of shop/-80") as error:
        started(vtctld, "RDONLY")
    assert "z-100 (PRIMARY), z-101 (REPLICA)" in str(error.value)


def test_a_vtctld_that_is_away_is_a_passing_fault() -> None:
    with FakeVtctld() as vtctld:
        pass
    with pytest.raises(TransientError, match="vtctld at"):
        started(vtctld)
