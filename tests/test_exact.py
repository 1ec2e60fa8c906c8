"""Every form × reveal × number of servers returns a row of least cost, compared with a plain argmin."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterveil import FORMS, REVEALS, make_scheme, run
from counterveil.crypto.randomness import new_key
from counterveil.errors import NoMask, TooFewServers
from counterveil.institution.masking import UNLIMITED, nearest_gap
from counterveil.schemes.reveals import Opened
from counts import some
from databases import Case, cases

OPENED = [name for name, reveal in REVEALS.items() if isinstance(reveal, Opened)]  # others have tests of their own
SERVERS = [(form, servers) for form in FORMS for servers in (2, 3, 4) if servers > FORMS[form].degree]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "servers"), SERVERS)
@settings(max_examples=some(1000))
@given(case=cases(), shuffle=st.booleans())
def test_returns_a_row_of_least_cost(form: str, servers: int, case: Case, shuffle: bool) -> None:
    costs = case.plain(form)
    gap = nearest_gap(costs)
    widest = 7 if gap == UNLIMITED else gap  # exact for this question
    for reveal in OPENED:
        d_min = widest if REVEALS[reveal].masked else 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoMask)
            scheme = make_scheme(
                f"{form}/{reveal}", servers=servers, shuffle=shuffle, d_min=d_min, **case.parameters(form)
            )
        common = scheme.common(new_key(), scheme.digest(case.rows), b"a ticket")
        found = run(scheme, case.rows, case.question(form), common=common).position
        row = common.order(len(costs))[found] if shuffle else found
        assert costs[row] == costs.min(), reveal


def test_weighted_needs_three_servers() -> None:
    with pytest.raises(TooFewServers, match="got 2, expected at least 3"):
        make_scheme("baseline+", largest=10, d=3, servers=2)
