"""The active driver is detected by its modules, whatever else is installed."""

from __future__ import annotations

from importlib.metadata import version

from airflow_cdc_provider.sources.scylla.client_driver import ClientDriver, _installed

STOCK, SHARDS = {"cassandra-driver": "3.30.1"}, {"scylla-driver": "3.29.12"}


def reported(driver: ClientDriver) -> list[tuple[str, str]]:
    return [(finding.level, finding.message) for finding in driver.findings()]


def test_the_driver_of_this_environment_is_found() -> None:
    driver = ClientDriver.detect()
    assert driver.installed[driver.name] == version(driver.name)
    assert driver.version == version(driver.name)
    assert reported(driver)[0] == ("ok", f"cassandra-driver {driver.version}")


def test_the_shard_aware_driver_is_reported() -> None:
    assert reported(ClientDriver("scylla-driver", "3.29.12", SHARDS)) == [
        ("ok", "scylla-driver 3.29.12, which is shard-aware")
    ]


def test_two_drivers_in_one_environment_are_reported() -> None:
    (_, (level, text)) = reported(ClientDriver("scylla-driver", "3.29.12", {**STOCK, **SHARDS}))
    assert level == "warning"
    assert text == (
        "cassandra-driver 3.30.1, scylla-driver 3.29.12 are both installed, into the same files: "
        "scylla-driver was installed last"
    )


def test_packages_are_known_however_their_names_are_written() -> None:
    packages = [("Scylla_Driver", "3.29.12"), ("cassandra.driver", "3.30.1"), ("pyarrow", "22")]
    assert _installed(packages) == {**STOCK, **SHARDS}
