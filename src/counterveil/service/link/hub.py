"""All links of one process: it dials its peers and accepts them, and keeps dialling while it runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence

from starlette.websockets import WebSocket

from ...crypto.keys import SigningKey
from ...crypto.randomness import new_id
from ...errors import CounterveilError, Malformed, Refused
from .channel import Channel, Gone
from .frames import Frame
from .handshake import Handshake, Party, Role, named
from .sockets import OPENING, Accepted, Dialled, link_url

log = logging.getLogger("counterveil")

MOST_STRANGERS = 64  # accepted connections that have not finished their handshake
MOST_CHANNELS = 256  # with one peer, all its processes together
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two attempts to dial


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
    ) -> None:
        self.urls = [link_url(url, insecure=insecure) for url in urls]
        self.boot = new_id()
        self._party = Party(number, self.boot, own, service, pinned)
        self._heard, self._opened, self._lost, self._verify = heard, opened, lost, verify
        self._channels: list[Channel] = []
        self._strangers: dict[Dialled | Accepted, None] = {}  # the one that came first stands first
        self._dialling: list[asyncio.Task[None]] = []
        self._closed = False

    def channels(self, number: int) -> list[Channel]:
        """Return the open channels with a party, the oldest first."""
        return [channel for channel in self._channels if channel.number == number and channel.alive]

    async def run(self) -> None:
        """Dial all addresses, and dial again what fails or ends, until `close` is called."""
        self._dialling = [asyncio.create_task(self._dial(url)) for url in self.urls]
        await asyncio.gather(*self._dialling, return_exceptions=True)

    async def accept(self, websocket: WebSocket) -> None:
        """Serve a connection that a peer, or a stranger, has opened.

        For one stranger too many, the one that has been here longest goes. A peer is no stranger any more after two
        messages, and is never sent away after that.
        """
        if self._closed:
            await websocket.close()
            return
        await websocket.accept()
        socket = Accepted(websocket)
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
        self._closed = True
        for task in self._dialling:
            task.cancel()
        for channel in self._channels:
            channel.close()
        for stranger in self._strangers:
            stranger.abort()
        await asyncio.gather(*self._dialling, return_exceptions=True)

    async def _dial(self, url: str) -> None:
        pause, told, loop = _SHORTEST, "", asyncio.get_running_loop()
        while not self._closed:
            why, opened = "the connection is closed", None
            try:
                socket = await Dialled.open(url, self._verify)
                try:
                    channel = await self._meet(socket, "dialler")
                    opened = loop.time()
                    await self._carry(channel)
                finally:
                    socket.abort()
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

    async def _meet(self, socket: Dialled | Accepted, role: Role) -> Channel:
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

    async def _shake_hands(self, socket: Dialled | Accepted, role: Role) -> Channel:
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
