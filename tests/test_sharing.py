from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterveil import Field, smallest_prime_above
from counterveil.crypto.randomness import Fresh
from counterveil.crypto.sharing import reconstruct, split, zero_share
from counterveil.errors import TooFewServers, WrongShape


@given(st.data())
def test_any_large_enough_set_of_servers_gives_the_secret_back(data: st.DataObject) -> None:
    field = Field(smallest_prime_above(data.draw(st.integers(20, 2**61))))
    T = data.draw(st.integers(1, 5))
    N = data.draw(st.integers(T + 1, 9))
    alphas = data.draw(st.lists(st.integers(1, field.q - 1), min_size=N, max_size=N, unique=True))
    secret = np.array(data.draw(st.lists(st.integers(0, field.q - 1), min_size=1, max_size=8)))
    shares = split(field, secret, alphas, T, Fresh())
    assert shares.shape == (N, secret.size)
    chosen = data.draw(st.permutations(range(N)))[: data.draw(st.integers(T + 1, N))]
    back = reconstruct(field, [alphas[n] for n in chosen], [shares[n] for n in chosen], T)
    assert np.array_equal(back, secret)


def test_zero_share_vanishes_at_0() -> None:
    field = Field(101)
    pads = np.array([[5, 100], [7, 1]])
    for alpha in range(1, 101):
        expected = [(5 * alpha + 7 * alpha**2) % 101, (100 * alpha + alpha**2) % 101]
        assert zero_share(field, alpha, pads).tolist() == expected


def test_too_few_servers_are_refused() -> None:
    field, secret = Field(101), np.array([1, 2])
    for collusion in (0, 2, 3):
        with pytest.raises(TooFewServers, match="servers: got 2"):
            split(field, secret, [1, 2], collusion, Fresh())
    with pytest.raises(TooFewServers, match="got 2, expected at least 3"):
        reconstruct(field, [1, 2], [secret, secret], 2)
    with pytest.raises(WrongShape, match="shares: got 1"):
        reconstruct(field, [1, 2], [secret], 1)
