"""Scheduled backups of a pool that runs: set, made, shown, and put back."""

from __future__ import annotations

from e2e_pool import RealPool, eventually


def test_scheduled_copy_is_made_listed_and_restored(own_pool: RealPool) -> None:
    folder = own_pool.work / "copies"
    own_pool("submit", "kept", "-g", "0.2", "--", "true")
    assert own_pool.becomes("kept", "succeeded")
    own_pool("backup", "--every", "6h", "--keep", "3", "--to", str(folder))
    assert eventually(lambda: own_pool.json("backup", "--list")["last_success_at"])
    shown = own_pool.json("backup", "--list")
    (copy,) = shown["files"]
    assert (shown["every_s"], shown["keep"], shown["folder"], shown["last_error"]) == (21_600, 3, str(folder), "")
    assert (copy["state"], copy["made_at"]) == ("ok", int(shown["last_success_at"]))
    with own_pool.client as client:
        assert client.backups().files[0].name == copy["name"]
    findings = own_pool.json("doctor")["findings"]
    assert [found["level"] for found in findings if found["check"] == "backups"] == ["ok"]
    refused = own_pool("backup", "--to", "relative", ok=False)
    assert refused.returncode
    assert b"absolute" in refused.stderr
    own_pool.down()
    own_pool("restore", str(folder / copy["name"]))
    own_pool.up()
    assert own_pool.state_of("kept") == "succeeded"
    own_pool("backup", "--every", "never")
    assert own_pool.json("backup", "--list")["every_s"] is None
