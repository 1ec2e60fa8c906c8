"""Default values of public parameters. Each default is defined here, and only here."""

from typing import Final

SCHEME: Final = "table/sealed"  # no default names a reveal that shows costs
LINKED: Final = "joint"  # the protocol for sealed reveals that "auto" chooses if servers talk to each other
MAX_WEIGHT: Final = 10  # L: how reluctant an applicant can be to change a feature
NORM: Final = 4  # the power of `even_norm`
K: Final = 1  # records that a question gets
D_MIN: Final = 1  # no mask
EXPANSION: Final = 1  # costs are not multiplied before they are masked
SHUFFLE: Final = True  # a deployment puts its rows in a new secret order for every ticket
REGION_BITS: Final = 20  # the unit of costs of regions is the largest for which no cost has more bits
LEAST_UNIT: Final = 16  # of costs of regions, even if they then have more bits
# `make_scheme` and `retrieve` work on bare codes and follow the paper: its servers answer in the rows' own order, so
# that `retrieve` finds a row by its number.
SHUFFLE_BARE: Final = False
