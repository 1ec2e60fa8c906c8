"""Processes of one server at one address: each is reached, whichever of them accepts the connection.

A process that accepts a connection says which processes there are, by their boot ids. A peer that wants to reach one of
them names it (`?process=…`). If another process accepts that connection, it passes the messages on, both ways, over a
socket in the family's folder. The handshake is between the two ends, so the process between them sees sealed frames.

Security: names of processes are public, and prove nothing: the handshake does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from ...errors import Malformed
from .channel import MOST_SEALED, Gone, Socket

HEADER = "counterveil-processes"  # of the answer to a connection: the names of all processes, separated by commas
QUERY = "process"  # of a link's address: the process to reach
MOST_PROCESSES = 128  # of one server at one address
_NAME = re.compile(r"[0-9a-f]{32}")  # a boot id
_LENGTH = 4  # bytes before each message
_FIRST = 1 << 10  # bytes: the longest first message
_REFUSAL = 1 << 31  # set in the length where the message is the reason for a refusal


class Passed:
    """A connection to another process of the same server, over which it passes on what a peer says, or we do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._most = reader, writer, _FIRST

    async def send(self, data: bytes) -> None:
        """Send a message; wait while many bytes are on their way."""
        await self._write(len(data), data)

    async def refuse(self, reason: str) -> None:
        """Say why, and end the connection."""
        said = reason.encode()
        with suppress(Gone):
            await self._write(len(said) | _REFUSAL, said)
        self._writer.close()

    async def _write(self, length: int, data: bytes) -> None:
        try:
            self._writer.write(length.to_bytes(_LENGTH, "big") + data)
            await self._writer.drain()
        except OSError:
            raise Gone("the connection is closed") from None

    async def receive(self) -> bytes:
        """Return the next message."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            if length & _REFUSAL:
                reason = await self._reader.readexactly(min(length ^ _REFUSAL, _FIRST))
                raise Refusal(reason.decode(errors="replace"))
            if length > self._most:
                raise Malformed("message", got=f"{length} bytes", expected=f"at most {self._most}")
            self._most = MOST_SEALED
            return await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            raise Gone("the connection is closed") from None

    def abort(self) -> None:
        """End the connection now."""
        self._writer.transport.abort()


class Refusal(Gone):
    """The other process refused the handshake, for this reason."""


class Siblings:
    """The processes of this server on this machine, by the names of their sockets in a folder."""

    def __init__(self, folder: Path, boot: bytes) -> None:
        self._folder, self._own = folder / "link", boot.hex()
        self._folder.mkdir(exist_ok=True)
        self._server: asyncio.Server | None = None

    async def open(self, accept: Callable[[Passed], Awaitable[None]]) -> None:
        """Take connections that other processes pass on."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await accept(Passed(reader, writer))

        early = self._folder / f"{self._own}.part"  # others see the name when somebody listens there
        self._server = await asyncio.start_unix_server(take, early)
        early.rename(self._folder / self._own)

    def close(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()
        (self._folder / self._own).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all processes."""
        return sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name))[:MOST_PROCESSES]

    async def reach(self, name: str) -> Passed:
        """Connect to another process; raise `Gone` if that fails."""
        try:
            return Passed(*await asyncio.open_unix_connection(self._folder / name, limit=MOST_SEALED))
        except ConnectionRefusedError:  # it was killed, or else it would have removed its name itself
            (self._folder / name).unlink(missing_ok=True)
            raise Gone("this process has ended") from None
        except OSError:
            raise Gone("this process cannot be reached now") from None


def names_in(header: str | None) -> list[str]:
    """Return the names of processes in a header from the network; leave out what is none."""
    return [name for name in (header or "").split(",")[:MOST_PROCESSES] if _NAME.fullmatch(name)]


async def carry(one: Socket, other: Socket) -> None:
    """Pass messages on, both ways, until one of the connections ends; raise the error that ended it."""

    async def pass_on(source: Socket, target: Socket) -> None:
        while True:
            await target.send(await source.receive())

    jobs = [asyncio.create_task(pass_on(one, other)), asyncio.create_task(pass_on(other, one))]
    try:
        done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        for job in done:
            job.result()
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
