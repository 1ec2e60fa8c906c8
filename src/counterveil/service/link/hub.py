"""All links of one process: it dials its peers and accepts them, and keeps dialling while it runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from starlette.websockets import WebSocket

from ...crypto.keys import SigningKey
from ...crypto.randomness import new_id
from ...errors import CounterveilError, Malformed, Refused
from .channel import Channel, Gone
from .frames import Frame
from .handshake import Handshake, Party, Role, named
from .siblings import HEADER, QUERY, Passed, Refusal, Siblings, carry
from .sockets import OPENING, Accepted, Dialled, Missing, link_url

log = logging.getLogger("counterveil")

MOST_STRANGERS = 64  # accepted connections that have not finished their handshake
MOST_CHANNELS = 256  # with one peer, all its processes together
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two attempts to dial
_LOOK = 2.0  # seconds between two looks for new processes behind an address
_OTHERS = "others"  # names the task that looks for them


class Links:
    """The links of one process to its peers.

    Parameters
    ----------
    number : this party's; a dealer has 0.
    own : its signing key.
    service : the service of the terms.
    pinned : the public key of every party that may be linked, by number.
    urls : web addresses of peers to dial, one for each of their processes.
    heard : called with every frame that arrives. If it raises an error, the channel ends.
    opened, lost : called when a channel opens, and once when it ends. All three are called in the event loop's thread.
    verify : which TLS certificates to trust, if not those that this machine trusts.
    insecure : allow plain http to other machines.
    folder : that of this process's family, if several processes of this party share an address.
    """

    def __init__(
        self,
        *,
        number: int,
        own: SigningKey,
        service: str,
        pinned: Mapping[int, bytes],
        urls: Sequence[str],
        heard: Callable[[Channel, Frame], None],
        opened: Callable[[Channel], None],
        lost: Callable[[Channel], None],
        verify: ssl.SSLContext | None = None,
        insecure: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.urls = [link_url(url, insecure=insecure) for url in urls]
        self.boot = new_id()
        self._party = Party(number, self.boot, own, service, pinned)
        self._heard, self._opened, self._lost, self._verify = heard, opened, lost, verify
        self._channels: list[Channel] = []
        self._strangers: dict[Accepted | Passed, None] = {}  # the one that came first stands first
        self._passing: set[Accepted] = set()  # connections to other processes of this party
        self._dialling: dict[tuple[str, str], asyncio.Task[None]] = {}  # by address, and process behind it
        self._siblings = None if folder is None else Siblings(folder, self.boot)
        self._closed = asyncio.Event()

    def channels(self, number: int) -> list[Channel]:
        """Return the open channels with a party, the oldest first."""
        return [channel for channel in self._channels if channel.number == number and channel.alive]

    async def run(self) -> None:
        """Dial all addresses, and dial again what fails or ends, until `close` is called.

        Behind an address there may be several processes. A process can be reached before it dials, so of any two the
        later one reaches the other at once. Who is never dialled, as a dealer, finds later processes by looking.
        """
        if self._siblings is not None:
            await self._siblings.open(self._accept_passed)
        for url in self.urls:
            self._dial(url)
        await self._closed.wait()

    async def accept(self, websocket: WebSocket) -> None:
        """Serve a connection that a peer, or a stranger, has opened.

        For one stranger too many, the one that has been here longest goes. A peer is no stranger any more after two
        messages, and is never sent away after that.
        """
        wanted = websocket.query_params.get(QUERY, self.boot.hex())
        names = self._siblings.names() if self._siblings is not None else []
        other: Passed | None = None
        try:
            if self._closed.is_set() or wanted not in (*names, self.boot.hex()):
                raise Gone("no such process")
            if self._siblings is not None and wanted != self.boot.hex():
                other = await self._siblings.reach(wanted)
        except Gone:
            await websocket.close()
            return
        await websocket.accept(headers=[(HEADER.encode(), ",".join(names).encode())] if names else None)
        if other is None:
            await self._accept(Accepted(websocket))
        else:
            await self._pass_on(Accepted(websocket), other)

    async def _pass_on(self, socket: Accepted, other: Passed) -> None:
        """Pass a connection on to another process of this party; that one counts it among its strangers."""
        self._passing.add(socket)
        try:
            await carry(socket, other)
        except Refusal as error:
            await socket.refuse(str(error))
        except CounterveilError as error:
            log.debug("link ended", extra={"fields": {"why": str(error)}})
        finally:
            self._passing.discard(socket)
            socket.abort()
            other.abort()

    async def _accept_passed(self, socket: Passed) -> None:
        if self._closed.is_set():
            socket.abort()
        else:
            await self._accept(socket)

    async def _accept(self, socket: Accepted | Passed) -> None:
        self._strangers[socket] = None
        if len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        try:
            channel = await self._meet(socket, "listener")
            self._strangers.pop(socket, None)
            await self._carry(channel)
        except CounterveilError as error:
            log.debug("link ended", extra={"fields": {"why": str(error)}})
        finally:
            self._strangers.pop(socket, None)
            socket.abort()

    async def close(self) -> None:
        """End all channels, and dial no more."""
        self._closed.set()
        if self._siblings is not None:
            self._siblings.close()
        dialling = [*self._dialling.values()]
        for task in dialling:
            task.cancel()
        for channel in self._channels:
            channel.close()
        for stranger in (*self._strangers, *self._passing):
            stranger.abort()
        await asyncio.gather(*dialling, return_exceptions=True)

    def _dial(self, url: str, process: str = "") -> None:
        """Keep up a connection to an address; or to a certain process behind it, until that process is gone."""
        if (url, process) not in self._dialling and not self._closed.is_set():
            task = self._dialling[url, process] = asyncio.create_task(self._keep_dialling(url, process))
            task.add_done_callback(lambda _: self._dialling.pop((url, process)))

    def _reach(self, url: str, processes: list[str]) -> None:
        """Dial all processes behind an address, and look from time to time whether there are others.

        A peer may name other processes every time. Those that it does not name any more, and that are not linked, are
        given up.
        """
        linked = [channel.boot.hex() for channel in self._channels if channel.alive]
        for (where, name), task in self._dialling.items():
            if where == url and name not in ("", _OTHERS, *processes, *linked):
                task.cancel()
        for name in processes:
            self._dial(url, name)
        if processes and (url, _OTHERS) not in self._dialling and not self._closed.is_set():
            task = self._dialling[url, _OTHERS] = asyncio.create_task(self._keep_looking(url))
            task.add_done_callback(lambda _: self._dialling.pop((url, _OTHERS)))

    async def _keep_looking(self, url: str) -> None:
        while not self._closed.is_set():
            await asyncio.sleep(_LOOK)
            with suppress(CounterveilError):  # if nobody is there, another task says so
                socket = await Dialled.open(url, self._verify)
                socket.abort()
                self._reach(url, socket.processes)

    async def _keep_dialling(self, url: str, process: str) -> None:
        pause, told, loop = _SHORTEST, "", asyncio.get_running_loop()
        while not self._closed.is_set():
            if process and any(channel.alive and channel.boot.hex() == process for channel in self._channels):
                await asyncio.sleep(_LONGEST)  # it is linked already, whoever dialled
                continue
            why, opened = "the connection is closed", None
            try:
                socket = await Dialled.open(url, self._verify, process)
                try:
                    channel = await self._meet(socket, "dialler")
                    opened = loop.time()
                    self._reach(url, socket.processes)
                    await self._carry(channel)
                finally:
                    socket.abort()
            except Missing:
                return
            except CounterveilError as error:
                why = str(error)
            except Exception as error:  # whatever a library raises, this process goes on dialling
                why = f"a failure on this side: {type(error).__name__}"
            if opened is not None and loop.time() - opened > _LONGEST:
                pause, told = _SHORTEST, ""
            if why != told:
                told = why
                log.warning("link down", extra={"fields": {"url": url, "why": why}})
            await asyncio.sleep(pause * (0.5 + new_id()[0] / 512))  # parties that lost each other do not dial in step
            pause = min(2 * pause, _LONGEST)

    async def _meet(self, socket: Dialled | Accepted | Passed, role: Role) -> Channel:
        """Shake hands within the deadline; tell the other side if it is refused."""
        try:
            async with asyncio.timeout(OPENING):
                return await self._shake_hands(socket, role)
        except TimeoutError:
            raise Gone(f"no handshake within {OPENING:g} seconds") from None
        except (Malformed, Refused) as error:
            await socket.refuse(str(error))
            raise

    async def _carry(self, channel: Channel) -> None:
        """Carry frames until the connection ends; raise the error that ended it."""
        self._channels.append(channel)
        log.info("link up", extra={"fields": {"peer": named(channel.number), "boot": channel.boot.hex()}})
        try:
            self._opened(channel)
            await channel.run(self._heard)
        except CounterveilError:
            raise
        except Exception as error:  # a mistake in a callback must not end the process's other links
            log.error("failure", extra={"fields": {"error": type(error).__name__, "at": "link"}})
            raise Gone(f"a failure on this side: {type(error).__name__}") from error
        finally:
            channel.close()
            self._channels.remove(channel)
            self._lost(channel)

    async def _shake_hands(self, socket: Dialled | Accepted | Passed, role: Role) -> Channel:
        """Exchange hellos and proofs. The listener says nothing before it has read a good hello.

        The dialler waits until the listener has accepted its proof. Otherwise it would take a channel for open that the
        listener is about to close.
        """
        hand = Handshake(self._party, role)
        if role == "dialler":
            await socket.send(hand.hello)
            proof = hand.prove(await socket.receive())
            seals = hand.finish(await socket.receive())
            await socket.send(proof)
            seals.open(await socket.receive())
        else:
            proof = hand.prove(await socket.receive())
            await socket.send(hand.hello)
            await socket.send(proof)
            seals = hand.finish(await socket.receive())
            if len(self.channels(hand.peer.number)) >= MOST_CHANNELS:
                raise Refused("busy", f"{named(hand.peer.number)} has too many channels")
            await socket.send(seals.seal(b""))
        return Channel(socket, hand.peer, seals)
