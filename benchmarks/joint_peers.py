"""Time other software that finds the least of shared costs; used by `joint.py --peers`.

SPU (https://pypi.org/project/spu) wants numpy below 2 and Python below 3.12, and MPyC (https://pypi.org/project/mpyc)
comes along, so both get an environment of their own in a temporary folder. Each finds the place of the least of 8,192
costs that are already shared, and returns no record.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROWS, BITS = 8192, 12
_PACKAGES = ("spu", "mpyc", "numpy<2")
_COSTS = f"""
import time
import numpy as np
costs = np.random.default_rng(1).integers(0, {1 << BITS}, {ROWS})

def say(what, seconds, place):
    print("measured", what, 1000 * seconds, int(place) == int(costs.argmin()), sep=";", flush=True)
"""
_SPU = f"""{_COSTS}
import jax.numpy as jnp
import spu
import spu.utils.simulation as simulation
for parties, kind in ((2, "SEMI2K"), (3, "ABY3")):
    simulator = simulation.Simulator.simple(parties, getattr(spu.ProtocolKind, kind), spu.FieldType.FM64)
    least, times = simulation.sim_jax(simulator, jnp.argmin), []
    for _ in range(4):
        began = time.perf_counter()
        place = least(costs)
        times.append(time.perf_counter() - began)
    say(f"SPU {{kind}}, {{parties}} parties", min(times), place)
"""
_MPYC = f"""{_COSTS}
from mpyc.runtime import mpc

async def main():
    await mpc.start()
    shared = mpc.input(mpc.SecInt({BITS + 1}).array(costs), senders=0)
    await mpc.output(shared[:1])
    began = time.perf_counter()
    place = await mpc.output(mpc.np_argmin(shared))
    if mpc.pid == 0:
        say("MPyC, 3 parties", time.perf_counter() - began, place)
    await mpc.shutdown()

mpc.run(main())
"""


class Peer(NamedTuple):
    """One measurement."""

    what: str
    milliseconds: float


def measured() -> Iterator[Peer | str]:
    """Install the peers and time them; return a sentence instead where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        python, uv = Path(folder) / "peers" / "bin" / "python", [sys.executable, "-m", "uv"]
        for command in (
            [*uv, "venv", "--quiet", "--python", "3.11", str(python.parent.parent)],
            [*uv, "pip", "install", "--quiet", "--python", str(python), *_PACKAGES],
        ):
            ran = subprocess.run(command, capture_output=True, text=True, timeout=600)  # noqa: S603
            if ran.returncode:
                yield f"SPU and MPyC could not be installed here: {' '.join(ran.stderr.split())[:200]}"
                return
        for name, source, options in (("SPU", _SPU, ()), ("MPyC", _MPYC, ("-M3", "--no-log"))):
            program = Path(folder) / f"{name}_argmin.py"  # a file, because MPyC starts it once more for every party
            program.write_text(source)
            yield from _ran(name, [str(python), str(program), *options])


def _ran(name: str, command: list[str]) -> Iterator[Peer | str]:
    """Run a program; return the times that it prints."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)  # noqa: S603
    lines = [line.split(";") for line in ran.stdout.splitlines() if line.startswith("measured;")]
    if not lines or not all(right == "True" for *_, right in lines):
        yield f"{name} failed here: {' '.join(ran.stderr.split())[-200:]}"
        return
    for _, what, milliseconds, _ in lines:
        yield Peer(what, float(milliseconds))
