"""The question of each form, as docs/wire-costs.md says it: the secret, the largest cost, q, and what records cost."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from math import comb
from typing import Any

from . import people, regions
from .numbers import prime_above
from .people import Feature

TAKES = {  # the preferences of forms that do not take all
    "euclidean": set[str](),
    "fixed": {"immutable"},
    "weighted": {"weights", "immutable", "override"},
    "linear": {"weights", "immutable", "override"},
    "even_norm": {"weights", "immutable", "override"},
}


class Question:
    """What terms, a person and their preferences come to."""

    def __init__(self, terms: dict[str, Any], person: dict[str, Any], wishes: dict[str, Any]) -> None:
        self.terms, chosen = terms, terms["parameters"]
        self.form, self.reveal = str(chosen["scheme"]).split("/")
        self.features = [Feature(each) for each in terms["schema"]["feature"]]
        self.costed = [f for f in self.features if f.in_cost]
        options = chosen.get("options", {})
        self.intervals = bool(options.get("record", {}).get("intervals"))
        self.d_min, self.N = int(chosen["d_min"]), int(chosen["servers"])
        self.n = int(chosen["norm"]) if self.form == "even_norm" else 2
        unit = options.get("form", {}).get("unit")
        self.bounds = people.tariff(self.costed, chosen["max_weight"], self.d_min, unit)
        own = [f.level(person.get(f.name)) for f in self.costed]
        if self.form == "table":
            self.tables, _ = people.tables(self.costed, own, wishes, self.bounds)
            self.B, self.e, self.offset = self.bounds.d * self.bounds.F, 1, 0
            self.s = [cost for f, table in zip(self.costed, self.tables, strict=True) for cost in self._asked(f, table)]
        else:
            self._stretch(own, wishes)

    def _asked(self, f: Feature, table: list[int]) -> list[int]:
        if self.terms["record"] != "region":
            return table
        return [cost for each in regions.columns(f, table, intervals=self.intervals) for cost in each]

    def _stretch(self, own: Sequence[int], wishes: dict[str, Any]) -> None:
        if not set(wishes) <= TAKES[self.form]:
            raise ValueError("preferences that the form does not take")
        G, n, bounds = self.bounds.G, self.n, self.bounds
        self.x = self.columns(own)
        m = len(self.x)
        self.W = 1
        if self.form == "fixed":
            self.W = m * G**2 + 1
        elif self.form != "euclidean":
            self.W = 2 * bounds.d * bounds.L * G**n + self.d_min
        self.B, self.e, self.offset = self.W * m * G**n, 1, 0
        given = people.weights(self.costed, wishes, bounds) if "weights" in TAKES[self.form] else [1] * bounds.d
        w = []
        for f, each in zip(self.costed, given, strict=True):
            ruled = f.change != "any" and f.name not in wishes.get("override", ())
            stays = self.form != "euclidean" and (ruled or f.name in wishes.get("immutable", ()))
            w += [self.W if stays else each] * len(self._stretched(f, 0))
        self.w, x = w, self.x
        if self.form == "euclidean":
            self.s = list(x)
        elif self.form in ("weighted", "fixed"):
            self.s, self.e = [*x, *w], 2
        else:
            self.s = [w[j] * x[j] ** p for p in range(n) for j in range(m)]
            self.offset = sum(w[j] * x[j] ** n for j in range(m))

    def _stretched(self, f: Feature, level: int) -> list[int]:
        if f.one_hot:
            return [self.bounds.G * (each == level) for each in range(f.most + 1)]
        return [round(level * (self.bounds.G / f.R))]

    def columns(self, levels: Sequence[int]) -> list[int]:
        """Return a row's columns."""
        return [c for f, level in zip(self.costed, levels, strict=True) for c in self._stretched(f, level)]

    @property
    def q(self) -> int:
        """The q that belongs to the form and the reveal."""
        if self.reveal.startswith("sealed"):
            return 1 << self.B.bit_length()
        bound = self.B + self.d_min - 1
        return prime_above(max(2 * bound if self.differences else bound, self.N))

    @property
    def differences(self) -> bool:
        """Whether the reveal is of differences."""
        return self.reveal.endswith("differences")

    def known(self, Q: Sequence[int]) -> int:
        """Return the part of a server's value that is free of the row."""
        if self.form == "euclidean":
            return sum(v * v for v in Q)
        if self.e == 2:
            m = len(Q) // 2
            return sum(Q[j] ** 2 * Q[m + j] for j in range(m))
        return 0

    def value(self, Q: Sequence[int], codes: Sequence[int]) -> int:
        """Return what a server computes for a row whose levels, or codes of regions, these are; for tests."""
        if self.form == "table":
            at = total = 0
            for width, code in zip(self.widths(), codes, strict=True):
                total += Q[at + code]
                at += width
            return total
        y, m, n = self.columns(codes), len(self.x), self.n
        if self.form == "euclidean":
            return sum((a - b) ** 2 for a, b in zip(y, Q, strict=True))
        if self.e == 2:
            return sum(Q[m + j] * (y[j] - Q[j]) ** 2 for j in range(m))
        powers = range(1, n + 1)
        return sum(comb(n, p) * (-1) ** (n - p) * Q[(n - p) * m + j] * y[j] ** p for p in powers for j in range(m))

    def widths(self) -> list[int]:
        """Return how many codes each column of a table has, for rows."""
        return [f.most + 1 for f in self.costed]

    def layout(self) -> list[str]:
        """Return the fields of a record, as `struct` names them."""
        if self.terms["record"] == "region":
            return ["H" if most < 1 << 16 else "I" for f in self.costed for most in regions.largest(f)]
        return ["d" if f.numeric and self.terms["record"] == "row" else "H" for f in self.features]

    @property
    def package(self) -> int:
        """The bytes of a package."""
        return struct.calcsize("<" + "".join(self.layout())) + 64 + 32

    def codes(self, record: bytes) -> list[int]:
        """Return the levels of a record, or the codes of a region; refuse what cannot be one."""
        held = struct.unpack("<" + "".join(self.layout()), record)
        if self.terms["record"] == "region":
            return list(held)
        levels = [
            f.level(v, clamp=True) if isinstance(v, float) else v for f, v in zip(self.features, held, strict=True)
        ]
        if any(level > f.most for f, level in zip(self.features, levels, strict=True)):
            raise ValueError("a level that the feature does not have")
        return levels

    def price(self, codes: Sequence[int]) -> int:
        """Return what a record costs."""
        if self.terms["record"] == "region":
            total, at = 0, 0
            for f, table in zip(self.costed, self.tables, strict=True):
                size = len(regions.largest(f))
                total += min(table[level] for level in regions.members(f, codes[at : at + size]))
                at += size
            return total
        levels = [level for f, level in zip(self.features, codes, strict=True) if f.in_cost]
        if self.form == "table":
            return sum(table[level] for table, level in zip(self.tables, levels, strict=True))
        pairs = zip(self.w, self.x, self.columns(levels), strict=True)
        return sum(w * (y - x) ** self.n for w, x, y in pairs)

    def relative(self, revealed: Sequence[int], q: int) -> list[int]:
        """Return costs by position, up to one shift if the reveal is of differences."""
        if not self.differences:
            return list(revealed)
        made = [0]
        for r in revealed:
            made.append(made[-1] - (r - q if r > q // 2 else r))
        return made

    def plausible(self, relative: Sequence[int]) -> bool:
        """Say whether costs can look like this."""
        return max(relative) - min(0, *relative) <= self.B + self.d_min - 1

    def fits(self, at: Sequence[int], paid: Sequence[int]) -> bool:
        """Say whether records that cost `paid` can stand where `at` was revealed."""
        excess = [c - cost for c, cost in zip(at, paid, strict=True)]
        if self.differences:
            return all(abs(each - excess[0]) < self.d_min for each in excess)
        return all(0 <= each < self.d_min for each in excess)

    def choose(self, relative: Sequence[int], k: int, spread: float) -> list[int]:
        """Return the positions to fetch."""
        unit = self.bounds.U if self.form == "table" else self.bounds.G**self.n
        apart, left, chosen = math.ceil(spread * unit), list(range(len(relative))), list[int]()
        threshold = 0
        for _ in range(min(k, len(relative))):
            far = [p for p in left if relative[p] >= threshold] if chosen else left
            best = min(far or left, key=lambda p: relative[p])
            threshold = max(threshold, relative[best] + apart) if chosen else relative[best] + apart
            left.remove(best)
            chosen.append(best)
        return chosen
