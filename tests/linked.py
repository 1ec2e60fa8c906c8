"""Linked parties for tests, in this process or each in its own: `python tests/linked.py NUMBER PORT URL …`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI

from counterveil.crypto.keys import SigningKey
from counterveil.research.processes import free_port
from counterveil.service.app import _add_link
from counterveil.service.connections import Crowd, Listener
from counterveil.service.link.channel import Channel
from counterveil.service.link.frames import Frame
from counterveil.service.link.hub import Links
from counterveil.service.listening import configured
from patience import LONG

KEYS = {n: SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in range(4)}
PINNED = {n: key.public for n, key in KEYS.items() if n < 3}  # the dealer and servers 1 and 2; 3 is a stranger


class Node:
    """One party of the link, in this process: its hub, and a web server if it listens."""

    def __init__(self, number: int, *urls: str, port: int | None = None, tls: Any = None, **changes: Any) -> None:
        self.heard: list[tuple[Channel, Frame]] = []
        self.opened: list[Channel] = []
        self.lost: list[Channel] = []
        given: dict[str, Any] = {
            "number": number,
            "own": KEYS[number],
            "service": "tests",
            "pinned": PINNED,
            "urls": urls,
            "heard": lambda channel, frame: self.heard.append((channel, frame)),
            "opened": self.opened.append,
            "lost": self.lost.append,
        }
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.links = Links(**given | changes)
        self.port, self.tls, self.crowd = port or free_port(), tls, Crowd()
        self.url = f"{'https' if tls else 'http'}://localhost:{self.port}"

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Node]:
        """Listen and dial."""
        app = FastAPI()
        app.add_api_route("/wait", self._wait)
        _add_link(app, self.links)
        cert, key = self.tls or (None, None)
        config = configured(app, host="localhost", port=self.port, tls_cert=cert, tls_key=key)
        self.server = Listener(config, self.crowd)
        running = asyncio.create_task(self.server._serve())
        try:
            await until(lambda: self.server.started or running.done())
            yield self
        finally:
            self.stop()
            await running

    def stop(self) -> None:
        self.server.should_exit = True

    async def _wait(self) -> str:
        """Answer a request only when the test says so."""
        self.asked.set()
        await self.may_answer.wait()
        return "answered"

    def frames(self) -> list[Frame]:
        return [frame for _, frame in self.heard]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, while the loop goes on."""
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0.005)


async def main(number: int, port: int, *urls: str) -> None:
    """Be one party until a signal; print the boot id of every peer that comes or goes."""

    def say(what: str, channel: Channel) -> None:
        sys.stdout.write(f"{what} {channel.number} {channel.boot.hex()}\n")
        sys.stdout.flush()

    node = Node(number, *urls, port=port, opened=lambda c: say("opened", c), lost=lambda c: say("lost", c))
    async with node.up():
        sys.stdout.write(f"boot {number} {node.links.boot.hex()}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
