from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterveil import CATALOGUE, Scheme, make_scheme, retrieve


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("servers", [None, 4])
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_record_fetched_is_that_of_a_nearest_row(name: str, servers: int | None, shuffle: bool) -> None:
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 301, (40, 6))
    x = rng.integers(0, 301, 6)
    records = [f"row number {i:3d}".encode() for i in range(40)]
    d_min = 2 if "mask" in name else 1
    found = retrieve(rows, x, largest=300, scheme=name, servers=servers, shuffle=shuffle, d_min=d_min, records=records)
    costs = ((rows - x) ** 2).sum(axis=1)
    assert sorted(costs)[1] - min(costs) >= 2
    assert found.index == int(np.argmin(costs))
    assert found.record == records[found.index]
    assert found.revealed.size == 40 - ("diff" in name)
    if not shuffle:
        assert found.position == found.index
        if name.endswith(("baseline", "baseline+")):
            assert np.array_equal(found.revealed, costs)


def test_without_records_the_row_itself_is_fetched() -> None:
    rows = np.array([[1, 2, 300], [7, 8, 9]])
    found = retrieve(rows, [7, 8, 8], largest=300, scheme="diff", shuffle=True)
    assert np.frombuffer(found.record, dtype="<u2").tolist() == [7, 8, 9]


def test_shuffled_positions_change_from_ticket_to_ticket() -> None:
    rows = np.arange(20)[:, None]
    found = [retrieve(rows, [7], largest=20, shuffle=True) for _ in range(30)]
    assert {f.index for f in found} == {7}
    assert len({f.position for f in found}) > 5
    assert all(sorted(f.revealed) == sorted((np.arange(20) - 7) ** 2) for f in found)


def test_a_scheme_of_ones_own() -> None:
    scheme = make_scheme("table/masked_differences", largest=[2, 5], d=2, cap=40, d_min=3, shuffle=True)
    costs = [[0, 5, 40], [9, 9, 0, 9, 9, 9]]
    found = retrieve([[0, 1], [1, 2], [2, 2]], scheme=scheme, costs=costs)
    assert found.index == 1
    assert found.scheme is scheme
    assert repr(found) == f"Retrieval(index=1, servers=2, q={scheme.field.q}, symbols=(18, 4), approximate)"


def test_the_records_are_bound_into_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[Any] = []
    real = Scheme.digest

    def digest(self: Scheme, rows: Any, records: Any = None) -> bytes:
        bound.append(records)
        return real(self, rows, records)

    monkeypatch.setattr(Scheme, "digest", digest)
    retrieve([[1, 2], [3, 4]], [1, 1], largest=5, records=[b"one", b"two"])
    assert [r.tobytes() for r in bound] == [b"onetwo"]


def test_views_hold_what_each_server_saw_and_no_more() -> None:
    found = retrieve([[1, 2], [3, 4]], [1, 1], largest=5, scheme="baseline+")
    assert [view.query.shape for view in found.views] == [(4,)] * 3
    assert [view.record_query.shape for view in found.views] == [(1,)] * 3


@pytest.mark.parametrize("frame", ["list", "int8", "uint32", "fortran", "strided"])
def test_rows_of_any_integer_layout(frame: str) -> None:
    base = np.random.default_rng(1).integers(0, 11, (30, 4))
    rows = {
        "list": base.tolist(),
        "int8": base.astype(np.int8),
        "uint32": base.astype(np.uint32),
        "fortran": np.asfortranarray(base),
        "strided": np.repeat(base, 2, axis=0)[::2],
    }[frame]
    costs = ((base - 5) ** 2).sum(axis=1)
    assert costs[retrieve(rows, [5] * 4, largest=10).index] == costs.min()
