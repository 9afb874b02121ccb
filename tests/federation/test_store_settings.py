"""Where stores go: memory, disk or a URL, by setting or by how much they take."""

from __future__ import annotations

import pytest

import mutua.federation.store_settings as module
from mutua import InputError
from mutua.federation.store_settings import StoreSettings, chosen_place
from mutua.support.configuration import checked


def test_where_stores_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory", lambda: 4000)
    auto = StoreSettings()
    assert chosen_place(auto, 1000) is None and chosen_place(auto, 1001) == "disk"
    assert chosen_place(StoreSettings(place="memory"), 10**9) is None
    one, two = (chosen_place(StoreSettings(place="s3://b/runs/"), 0) for _ in range(2))
    assert one != two and one.startswith("s3://b/runs/")  # two runs never share files
    with pytest.raises(InputError, match=r"stores.place: 'dsk'; give auto, memory, disk or a URL"):
        checked(StoreSettings, {"place": "dsk"}, at="stores")
