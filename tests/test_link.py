"""The link between servers: who may speak, what arrives, what ends a channel, and that it comes back."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx2
import msgspec
import pytest
import websockets
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as ws_connect

from certificates import certificate
from counterveil.errors import Malformed, OutOfRange, Refused
from counterveil.research.processes import free_port
from counterveil.service.link import channel as channels
from counterveil.service.link import frames, hub
from counterveil.service.link.channel import MOST_SEALED, MOST_WAITING, Channel, Gone
from counterveil.service.link.frames import MOST_DATA, Frame, Opening, Ping, Ready, Run, Standing, Tape, Used
from counterveil.service.link.handshake import DEALER, Handshake, Hello, Party, Seals
from counterveil.service.link.hub import MOST_STRANGERS
from counterveil.service.link.siblings import Siblings
from counterveil.service.link.sockets import link_url
from counterveil.service.listening import configured
from linked import KEYS, PINNED, Node, until
from patience import LONG, wait_until

RUN = Run(bytes(32), bytes(16), (1, 2), 0)
FRAMES: list[Frame] = [
    Ready(RUN),
    frames.Begin(RUN, b""),
    frames.Begin(RUN, bytes(32)),
    Opening(RUN, b"data"),
    Standing(RUN, "given up", True),
    Ping(0),
    frames.Pong(2**53 - 1),
    Tape(bytes(32), 3, 7, bytes(16), b"data"),
    Used(bytes(32)),
    frames.Kept(bytes(32)),
    frames.Peers(()),
    frames.Peers((bytes(16), bytes([1]) * 16)),
]


# Frames


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frames_come_back_as_they_were(frame: Frame) -> None:
    data = frames.encode(frame)
    assert frames.decode(data) == frame
    with pytest.raises(Malformed):
        frames.decode(data + b"\0")
    with pytest.raises(Malformed):
        frames.decode(data[:-1])


@pytest.mark.parametrize(
    "frame",
    [
        Ready(Run(bytes(31), bytes(16), (1, 2), 0)),
        Ready(Run(bytes(32), bytes(17), (1, 2), 0)),
        Ready(Run(bytes(32), bytes(16), (2, 1), 0)),
        Ready(Run(bytes(32), bytes(16), (1, 1), 0)),
        Ready(Run(bytes(32), bytes(16), (0, 1), 0)),
        Ready(Run(bytes(32), bytes(16), (1, 2), 16)),
        frames.Begin(RUN, bytes(33)),
        Standing(RUN, "lost", True),  # type: ignore[arg-type]
        Ping(-1),
        Tape(bytes(32), 4, 7, bytes(16), b"data"),
        Used(bytes(31)),
        frames.Kept(bytes(33)),
        frames.Peers((bytes(15),)),
        frames.Peers((bytes(16),) * (frames.MOST_PEERS + 1)),
    ],
    ids=repr,
)
def test_bad_frames_are_malformed(frame: Frame) -> None:
    with pytest.raises(Malformed):
        frames.decode(frames.encode(frame))


def test_frames_have_a_longest_length() -> None:
    longest = Opening(RUN, bytes(MOST_DATA))
    assert frames.decode(frames.encode(longest)) == longest
    with pytest.raises(Malformed):
        frames.decode(frames.encode(Opening(RUN, bytes(MOST_DATA + 1))))
    with pytest.raises(OutOfRange):
        frames.encode(Opening(RUN, bytes(MOST_DATA + 300)))
    with pytest.raises(Malformed):
        frames.decode(bytes(MOST_DATA + 300))


def test_a_frame_has_one_encoding() -> None:
    data = frames.encode(Ping(5))
    assert data[-1:] == b"\x05"
    with pytest.raises(Malformed, match="another encoding"):
        frames.decode(data[:-1] + b"\xcc\x05")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    with suppress(Malformed):
        assert frames.encode(frames.decode(data)) == data


@given(st.sampled_from(FRAMES), st.data())
def test_altered_bytes_are_a_frame_or_malformed(frame: Frame, drawn: st.DataObject) -> None:
    data = bytearray(frames.encode(frame))
    at = drawn.draw(st.integers(0, len(data) - 1))
    data[at] = drawn.draw(st.integers(0, 255))
    with suppress(Malformed):
        assert frames.encode(frames.decode(bytes(data))) == data


# The handshake, without a network


def party(number: int, key: int | None = None, service: str = "tests", pinned: dict[int, bytes] | None = None) -> Party:
    own = KEYS[number if key is None else key]
    return Party(number, bytes([number]) * 16, own, service, PINNED if pinned is None else pinned)


def shaken(dialler: Party, listener: Party) -> tuple[Seals, Seals]:
    one, two = Handshake(dialler, "dialler"), Handshake(listener, "listener")
    second = two.prove(one.hello)
    first = one.prove(two.hello)
    return one.finish(second), two.finish(first)


def test_both_sides_get_keys_that_fit() -> None:
    for n, m in ((1, 2), (2, 1), (DEALER, 1), (2, DEALER)):
        one, two = shaken(party(n), party(m))
        for text in (b"", b"a", b"b"):
            assert two.open(one.seal(text)) == text
            assert one.open(two.seal(text)) == text


def test_every_channel_has_keys_of_its_own() -> None:
    pairs = [shaken(party(1), party(2)) for _ in range(2)]
    sealed = {seals.seal(bytes(32)) for pair in pairs for seals in pair}
    assert len(sealed) == 4


@pytest.mark.parametrize(
    ("one", "two", "says"),
    [
        (party(1, key=3), party(2), "pin for server 1"),  # somebody else's key
        (party(1), party(2, key=1), "pin for server 2"),
        (party(DEALER, key=1), party(2), "pin for the dealer"),  # server 1 poses as the dealer
        (party(1, service="other"), party(2), "another service"),
        (party(2), party(2), "own number"),
        (party(3), party(2), "a party that the terms pin"),
    ],
    ids=["key of the dialler", "key of the listener", "a dealer's number", "service", "own number", "unknown number"],
)
def test_only_pinned_parties_of_the_same_service_get_keys(one: Party, two: Party, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        shaken(one, two)


def test_a_replayed_hello_and_proof_are_of_no_use() -> None:
    """Somebody plays again, to a listener, all that an honest dialler sent it before."""
    honest, listener = Handshake(party(1), "dialler"), Handshake(party(2), "listener")
    listener.prove(honest.hello)
    proof = honest.prove(listener.hello)
    listener.finish(proof)
    again = Handshake(party(2), "listener")
    again.prove(honest.hello)
    with pytest.raises(Malformed, match="another signature"):
        again.finish(proof)


def test_a_reflected_hello_or_proof_is_of_no_use() -> None:
    one = Handshake(party(1), "dialler")
    with pytest.raises(Malformed, match="own number"):
        one.prove(one.hello)
    two = Handshake(party(2), "listener")
    proof = two.prove(one.hello)
    with pytest.raises(Malformed, match="another signature"):  # what it signed itself comes back
        two.finish(proof)
    # Two diallers who are connected with each other by a man in the middle: their proofs are for the same role.
    other = Handshake(party(2), "dialler")
    one.prove(other.hello)
    proof = other.prove(one.hello)
    with pytest.raises(Malformed, match="another signature"):
        one.finish(proof)


def test_a_man_in_the_middle_who_puts_in_his_key_gets_no_channel() -> None:
    one, two, middle = Handshake(party(1), "dialler"), Handshake(party(2), "listener"), Handshake(party(1), "dialler")
    second = two.prove(middle.hello)
    first = one.prove(two.hello)
    with pytest.raises(Malformed, match="another signature"):
        one.finish(second)
    with pytest.raises(Malformed, match="another signature"):
        two.finish(first)


@given(st.integers(0, 1000), st.integers(1, 255))
def test_an_altered_hello_ends_the_handshake(at: int, change: int) -> None:
    one, two = Handshake(party(1), "dialler"), Handshake(party(2), "listener")
    altered = bytearray(one.hello)
    altered[at % len(altered)] ^= change
    with pytest.raises(Malformed):
        two.finish(_after(two.prove(bytes(altered)), one.prove(two.hello)))


def _after(_: bytes, proof: bytes) -> bytes:
    return proof


@given(st.binary(max_size=200))
def test_any_bytes_are_a_hello_or_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Handshake(party(1), "dialler").prove(data)


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little")], ids=["zero", "one"])
def test_a_key_of_small_order_is_refused_even_from_a_pinned_party(key: bytes) -> None:
    listener = Handshake(party(2), "listener")
    hello = msgspec.msgpack.encode(Hello(1, "tests", 1, bytes(16), key))
    listener.prove(hello)
    with pytest.raises(Malformed, match="no secret"):
        listener.finish(KEYS[1].sign("link", b"dialler", hello, listener.hello))


def test_a_frame_that_is_altered_repeated_left_out_moved_or_sent_back_does_not_open() -> None:
    one, _ = shaken(party(1), party(2))
    with pytest.raises(Malformed):
        one.open(one.seal(b"mine"))  # sent back
    for spoil in (
        lambda a, b: [a[:-1] + bytes([a[-1] ^ 1])],
        lambda a, b: [a, a],
        lambda a, b: [b],
        lambda a, b: [b, a],
        lambda a, b: [a[:-1]],
        lambda a, b: [b""],
    ):
        one, two = shaken(party(1), party(2))
        sealed = spoil(one.seal(b"first"), one.seal(b"second"))
        with pytest.raises(Malformed):
            list(map(two.open, sealed))


# Hubs over real sockets


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Node, Node, Channel, Channel]]:
    """Two linked parties: server 1 listens, server 2 dials."""
    async with Node(1, **options).up() as one, Node(2, one.url, **options).up() as two:
        await until(lambda: bool(one.opened and two.opened))
        yield one, two, one.opened[0], two.opened[0]


def test_linked_parties_hear_each_other_in_order() -> None:
    async def go() -> None:
        async with pair() as (one, two, at_one, at_two):
            assert (at_one.number, at_one.boot) == (2, two.links.boot)
            assert (at_two.number, at_two.boot) == (1, one.links.boot)
            assert one.links.channels(2) == [at_one]
            assert one.links.channels(1) == one.links.channels(0) == []
            said: list[Frame] = [Opening(RUN, bytes([n % 256]) * (n * 997 % MOST_DATA)) for n in range(1, 60)]
            said.insert(30, Opening(RUN, bytes(MOST_DATA)))
            for frame in said:
                at_one.send(frame)
                at_two.send(frame)
            await until(lambda: len(one.heard) == len(two.heard) == len(said))
            assert one.frames() == two.frames() == said
            await until(lambda: at_one.round_trip is not None and at_two.round_trip is not None)
            assert at_one.round_trip is not None
            assert 0 < at_one.round_trip < LONG
        assert one.lost == [at_one]
        assert two.lost == [at_two]
        assert not at_one.alive
        with pytest.raises(Refused, match="down") as refused:
            at_one.send(Ping(1))
        assert refused.value.code == "peer_unreachable"

    asyncio.run(go())


def test_any_thread_may_send_and_each_keeps_its_order() -> None:
    async def go() -> None:
        async with pair() as (one, _, _, at_two):

            def speak(who: int) -> None:
                for n in range(200):
                    at_two.send(Opening(RUN, bytes([who]) * (n + 1)))

            threads = [threading.Thread(target=speak, args=(who,)) for who in range(4)]
            for thread in threads:
                thread.start()
            await until(lambda: len(one.heard) == 800)
            for who in range(4):
                own = [frame.data for _, frame in one.heard if isinstance(frame, Opening) and frame.data[0] == who]
                assert [len(data) for data in own] == list(range(1, 201))
            for thread in threads:
                thread.join()

    asyncio.run(go())


def test_a_link_goes_through_tls_and_only_to_a_trusted_certificate(tmp_path: Path) -> None:
    cert = certificate(tmp_path)

    async def go() -> None:
        trusting = ssl.create_default_context(cafile=cert[0])
        async with (
            Node(1, tls=cert).up() as one,
            Node(2, one.url, verify=trusting).up() as two,
            Node(0, one.url).up() as wary,
        ):
            await until(lambda: bool(two.opened and one.opened))
            two.opened[0].send(Opening(RUN, bytes(MOST_DATA)))
            one.opened[0].send(Opening(RUN, bytes(MOST_DATA)))
            await until(lambda: bool(one.heard and two.heard))
            assert one.frames() == two.frames() == [Opening(RUN, bytes(MOST_DATA))]
            assert not wary.opened

    asyncio.run(go())


def test_plain_http_goes_to_this_machine_only() -> None:
    assert link_url("http://localhost:8001") == "ws://localhost:8001/v1/link"
    assert link_url("http://127.0.0.1:8001/") == "ws://127.0.0.1:8001/v1/link"
    assert link_url("https://one.example/bank") == "wss://one.example/bank/v1/link"
    assert link_url("http://one.example", insecure=True) == "ws://one.example/v1/link"
    for bad in ("http://one.example", "ws://localhost", "one.example", "https://user@one.example"):
        with pytest.raises(Malformed):
            link_url(bad)


# Hostile peers and strangers


@asynccontextmanager
async def dialled(url: str) -> AsyncIterator[ClientConnection]:
    """A plain WebSocket to a party's link."""
    async with ws_connect(link_url(url), compression=None, max_size=None, ping_interval=None, proxy=None) as connection:
        yield connection


async def shake(connection: ClientConnection, who: Party) -> Seals:
    """Shake hands as the dialler, by hand."""
    hand = Handshake(who, "dialler")
    await connection.send(hand.hello)
    proof = hand.prove(bytes(await connection.recv(decode=False)))
    seals = hand.finish(bytes(await connection.recv(decode=False)))
    await connection.send(proof)
    assert seals.open(bytes(await connection.recv(decode=False))) == b""
    return seals


async def ended(connection: ClientConnection) -> str:
    """Wait until the other side ends the connection; return the reason that it gives."""
    async with asyncio.timeout(LONG):
        try:
            while True:
                await connection.recv()
        except websockets.ConnectionClosed as error:
            return error.rcvd.reason if error.rcvd else ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"own": KEYS[3]}, "pin for server 2"),
        ({"service": "other"}, "another service"),
        ({"pinned": PINNED | {1: KEYS[3].public}}, "pin for server 1"),
    ],
    ids=["key", "service", "pin of the listener"],
)
def test_a_dialler_who_is_not_linked_is_told_why(
    changes: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with Node(1).up() as one, Node(2, one.url, **changes).up() as two:
            with caplog.at_level(logging.WARNING, "counterveil"):
                await until(lambda: any("link down" in record.getMessage() for record in caplog.records))
            assert not one.opened
            assert not two.opened
        told = {fields["why"] for record in caplog.records if (fields := getattr(record, "fields", {})).get("why")}
        assert any(says in why for why in told), told

    asyncio.run(go())


@pytest.mark.parametrize(
    "first",
    [b"", b"garbage", bytes(1000), bytes(5000), bytes(MOST_SEALED + 1), "text", Handshake(party(3), "dialler").hello],
    ids=["empty", "garbage", "zeros", "long", "too long", "text", "an unknown number"],
)
def test_garbage_before_the_handshake_ends_the_connection(first: bytes | str) -> None:
    async def go() -> None:
        async with pair() as (one, _, at_one, at_two):
            async with dialled(one.url) as stranger:
                with suppress(websockets.ConnectionClosed):
                    await stranger.send(first)
                await ended(stranger)
            at_two.send(Ready(RUN))
            await until(lambda: bool(one.heard))
            assert at_one.alive
            assert len(one.opened) == 1
            await until(lambda: not one.links._strangers)

    asyncio.run(go())


def test_a_hello_and_a_proof_recorded_before_open_no_channel() -> None:
    async def go() -> None:
        async with Node(1).up() as one:
            hand = Handshake(party(2), "dialler")
            async with dialled(one.url) as honest:
                await honest.send(hand.hello)
                proof = hand.prove(bytes(await honest.recv(decode=False)))
                await honest.recv()
                await honest.send(proof)
                await until(lambda: len(one.opened) == 1)
            async with dialled(one.url) as replayed:
                await replayed.send(hand.hello)
                await replayed.send(proof)
                assert "another signature" in await ended(replayed)
            async with dialled(one.url) as reflected:
                await reflected.send(hand.hello)
                await reflected.recv()
                await reflected.send(await reflected.recv(decode=False))  # its own proof comes back
                assert "another signature" in await ended(reflected)
            assert len(one.opened) == 1

    asyncio.run(go())


@pytest.mark.parametrize(
    "spoil", ["altered", "repeated", "clear", "no frame", "too long", "text", "ping", "false pong"]
)
def test_what_a_peer_may_not_send_ends_its_channel_alone(spoil: str) -> None:
    async def go() -> None:
        async with pair() as (one, _, at_one, at_two):
            async with dialled(one.url) as peer:
                seals = await shake(peer, party(2))
                good = seals.seal(frames.encode(Ready(RUN)))
                await peer.send(good)
                await until(lambda: len(one.heard) == 1)
                following = seals.seal(frames.encode(Ready(RUN)))
                bad: dict[str, Callable[[], Any]] = {
                    "altered": lambda: peer.send(following[:-1] + bytes([following[-1] ^ 1])),
                    "repeated": lambda: peer.send(good),
                    "clear": lambda: peer.send(frames.encode(Ready(RUN))),
                    "no frame": lambda: peer.send(seals_again(seals, b"\x91\x01")),
                    "too long": lambda: peer.send(bytes(MOST_SEALED + 1)),
                    "text": lambda: peer.send("text"),
                    "ping": lambda: peer.ping(),
                    "false pong": lambda: peer.send(seals_again(seals, frames.encode(frames.Pong(77)))),
                }
                with suppress(websockets.ConnectionClosed):
                    await bad[spoil]()
                await until(lambda: len(one.lost) == 1)
            assert len(one.heard) == 1
            at_two.send(Ready(RUN))
            await until(lambda: len(one.heard) == 2)
            assert at_one.alive

    asyncio.run(go())


def seals_again(seals: Seals, data: bytes) -> bytes:
    """Seal data in the place of the frame that was sealed last, but not sent."""
    seals._sent -= 1
    return seals.seal(data)


def test_an_error_in_a_callback_ends_that_channel_alone() -> None:
    async def go() -> None:
        def heard(channel: Channel, frame: Frame) -> None:
            raise Malformed("opening", got="too much", expected="less") if isinstance(frame, Opening) else KeyError(1)

        async with Node(1, heard=heard).up() as one, Node(2, one.url).up() as two:
            said: list[Frame] = [Opening(RUN, b""), Ready(RUN)]
            for n, frame in enumerate(said, start=1):
                await until(lambda n=n: len(two.opened) == n)  # type: ignore[misc]
                two.opened[-1].send(frame)
                await until(lambda n=n: len(one.lost) == n)  # type: ignore[misc]
            await until(lambda: len(two.opened) == 3)

    asyncio.run(go())


def test_strangers_neither_push_out_a_peer_nor_keep_one_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "OPENING", 2 * LONG)  # strangers do not leave by themselves

    async def go() -> None:
        async with pair() as (one, _, at_one, at_two):
            strangers = []
            for _ in range(MOST_STRANGERS + 20):
                strangers.append(await ws_connect(link_url(one.url), compression=None, proxy=None))
                assert len(one.links._strangers) <= MOST_STRANGERS + 1
            await until(lambda: len(one.links._strangers) <= MOST_STRANGERS)
            async with Node(DEALER, one.url).up() as late:
                await until(lambda: bool(late.opened))
                late.opened[0].send(Used(bytes(32)))
                at_two.send(Ready(RUN))
                await until(lambda: len(one.heard) == 2)
            assert at_one.alive
            for stranger in strangers:
                stranger.transport.abort()

    asyncio.run(go())


def test_a_peer_has_a_limited_number_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_CHANNELS", 2)

    async def go() -> None:
        async with pair() as (one, _, at_one, _), dialled(one.url) as second, dialled(one.url) as third:
            await shake(second, party(2))
            await until(lambda: len(one.opened) == 2)
            hand = Handshake(party(2), "dialler")
            await third.send(hand.hello)
            await third.send(hand.prove(bytes(await third.recv(decode=False))))
            assert "too many channels" in await ended(third)
            assert at_one.alive
            assert len(one.links.channels(2)) == 2

    asyncio.run(go())


def test_a_stranger_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "OPENING", 0.2)

    async def go() -> None:
        async with Node(1).up() as one, dialled(one.url) as silent, dialled(one.url) as slow:
            hand = Handshake(party(2), "dialler")
            await slow.send(hand.hello)
            await ended(silent)
            await ended(slow)
            assert not one.opened

    asyncio.run(go())


def test_a_peer_who_falls_silent_is_lost_and_one_who_has_nothing_to_say_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PING_EVERY", 0.05)
    monkeypatch.setattr(channels, "SILENCE", 1.0)

    async def go() -> None:
        async with pair() as (one, _, at_one, at_two):
            one.crowd.asking = 0.1  # an upgraded connection has left the crowd, and is not closed as idle
            async with dialled(one.url) as peer:
                await shake(peer, party(2))
                await until(lambda: len(one.opened) == 2)
                await until(lambda: bool(one.lost))
            assert one.lost == [one.opened[1]]
            assert at_one.alive
            assert at_two.alive
            assert not one.crowd._all

    asyncio.run(go())


def test_no_more_than_64_mebibytes_wait_for_a_peer_who_does_not_read() -> None:
    async def go() -> None:
        async with Node(1).up() as one, ws_silent(one.url) as peer:
            await shake(peer, party(2))
            await until(lambda: len(one.opened) == 1)
            peer.transport.pause_reading()
            channel, megabyte = one.opened[0], Opening(RUN, bytes(MOST_DATA))
            for _ in range(MOST_WAITING // MOST_DATA - 1):
                channel.send(megabyte)
            with pytest.raises(Refused, match="does not take") as refused:
                channel.send(megabyte)
            assert refused.value.code == "peer_unreachable"
            assert channel.alive
            peer.transport.resume_reading()
            await until(lambda: not channel._queue)
            channel.send(Ready(RUN))

    asyncio.run(go())


@asynccontextmanager
async def ws_silent(url: str) -> AsyncIterator[ClientConnection]:
    """A WebSocket whose messages nobody takes after the handshake."""
    made = await ws_connect(link_url(url), compression=None, max_size=None, max_queue=None, ping_interval=None)
    try:
        yield made
    finally:
        made.transport.abort()


def test_a_peer_who_never_reads_is_lost_though_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PING_EVERY", 0.05)
    monkeypatch.setattr(channels, "SILENCE", 1.0)

    async def go() -> None:
        async with Node(1).up() as one, ws_silent(one.url) as peer:
            seals = await shake(peer, party(2))
            await until(lambda: len(one.opened) == 1)
            peer.transport.pause_reading()
            for _ in range(32):
                one.opened[0].send(Opening(RUN, bytes(MOST_DATA)))
            with suppress(websockets.ConnectionClosed):
                while not one.lost:
                    await peer.send(seals.seal(frames.encode(Ready(RUN))))
                    await asyncio.sleep(0.05)
            await until(lambda: bool(one.lost))

    asyncio.run(go())


def test_a_link_stays_until_the_answers_under_way_are_finished() -> None:
    async def go() -> None:
        async with Node(1).up() as one, Node(2, one.url).up() as two, httpx2.AsyncClient() as client:
            await until(lambda: bool(one.opened and two.opened))
            asking = asyncio.create_task(client.get(f"{one.url}/wait", timeout=LONG))
            await one.asked.wait()
            one.stop()
            await until(lambda: not one.server.servers[0].is_serving())
            two.opened[0].send(Ready(RUN))
            await until(lambda: bool(one.heard))
            one.opened[0].send(Ready(RUN))
            await until(lambda: bool(two.heard))
            one.may_answer.set()
            assert (await asking).json() == "answered"
            await until(lambda: bool(one.lost and two.lost))

    asyncio.run(go())


def test_logs_have_no_address_of_whoever_connects(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with pair() as (one, _, _, _), dialled(one.url) as stranger:
            await stranger.send(b"garbage")
            await ended(stranger)
            with pytest.raises(websockets.InvalidStatus):
                await ws_connect(link_url(one.url + "/elsewhere"), proxy=None)

    with caplog.at_level(logging.DEBUG):
        asyncio.run(go())
    server_side = [record for record in caplog.records if record.name.startswith(("uvicorn", "counterveil"))]
    assert any(record.getMessage() == "link up" for record in server_side)
    for record in server_side:
        said = f"{record.getMessage()} {getattr(record, 'fields', '')}"
        assert "127.0.0.1:" not in said
        assert "::1" not in said


def test_without_a_link_the_server_speaks_no_websocket() -> None:
    config = configured(FastAPI(), host="localhost", port=0, tls_cert=None, tls_key=None)
    assert config.ws == "none"


# Links that break, and processes


def test_a_dialler_comes_back_when_the_listener_does() -> None:
    async def go() -> None:
        port = free_port()
        async with Node(2, f"http://localhost:{port}").up() as two:
            for n in range(1, 4):
                async with Node(1, port=port).up() as one:
                    await until(lambda n=n: len(two.opened) == n)  # type: ignore[misc]
                    assert two.opened[-1].boot == one.links.boot
                await until(lambda n=n: len(two.lost) == n)  # type: ignore[misc]
                assert two.links.channels(1) == []

    asyncio.run(go())


def test_a_peer_that_names_new_processes_every_time_is_dialled_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken: this process kept a task for each name that it ever heard."""
    looks = 0

    class Names:
        """A connection to an address behind which 128 other processes are every time, none of which answers."""

        def __init__(self) -> None:
            self.processes = [os.urandom(16).hex() for _ in range(128)]

        @classmethod
        async def open(cls, _url: str, _verify: Any, process: str = "") -> Names:
            nonlocal looks
            if process:
                await asyncio.sleep(LONG)
            looks += 1
            return cls()

        def abort(self) -> None:
            pass

    monkeypatch.setattr(hub, "Dialled", Names)
    monkeypatch.setattr(hub, "_LOOK", 0.01)

    async def go() -> None:
        node = Node(1, "http://localhost:1")
        node.links._reach("http://localhost:1", Names().processes)
        await until(lambda: looks > 5)
        assert len(node.links._dialling) <= 2 * 128 + 2  # those of the last look, and those that are just given up
        await node.links.close()

    asyncio.run(go())


def test_a_process_that_cannot_be_reached_for_want_of_descriptors_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go(folder: Path) -> None:
        one, two = Siblings(folder, b"1" * 16), Siblings(folder, b"2" * 16)

        async def take(_: Any) -> None:
            await asyncio.sleep(LONG)

        async def full(*_: Any, **__: Any) -> Any:
            raise OSError(24, "Too many open files")

        await one.open(take)
        await two.open(take)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_unix_connection", full)
            with pytest.raises(Gone):
                await one.reach((b"2" * 16).hex())
        assert len(one.names()) == 2
        two.close()
        one.close()

    with tempfile.TemporaryDirectory() as short:  # paths of sockets may have 107 bytes
        asyncio.run(go(Path(short)))


class Process:
    """A party in a process of its own."""

    def __init__(self, number: int, port: int, *urls: str) -> None:
        script = str(Path(__file__).parent / "linked.py")
        self._command = [sys.executable, script, str(number), str(port), *urls]
        self.start()

    def start(self) -> None:
        self.said: list[list[str]] = []
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout, self.said))
        self._reader.start()

    @staticmethod
    def _read(lines: IO[str], said: list[list[str]]) -> None:
        with lines:
            said.extend(line.split() for line in lines)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    @property
    def boot(self) -> str:
        wait_until(lambda: any(said[0] == "boot" for said in self.said))
        return next(said[2] for said in self.said if said[0] == "boot")

    def sees(self) -> set[str]:
        """Return the boot ids of the peers that are linked now."""
        open_now: list[str] = []
        for what, _, boot in list(self.said):
            if what == "opened":
                open_now.append(boot)
            elif what == "lost":
                open_now.remove(boot)
        return set(open_now)


@pytest.mark.slow
def test_two_processes_by_two_all_see_each_other_also_after_one_was_killed() -> None:
    ports = [free_port() for _ in range(4)]
    urls = [f"http://localhost:{port}" for port in ports]
    parties = [Process(1 + (n >= 2), ports[n], *(urls[2:] if n < 2 else urls[:2])) for n in range(4)]
    try:
        _all_see(parties)
        first = parties[2].boot
        parties[2].kill()
        wait_until(lambda: all(first not in party.sees() for party in parties[:2]))
        parties[2].start()
        _all_see(parties)
        assert parties[2].boot != first
    finally:
        for each in parties:
            each.kill()


def _all_see(parties: list[Process]) -> None:
    ones, twos = {each.boot for each in parties[:2]}, {each.boot for each in parties[2:]}
    wait_until(lambda: all(each.sees() == twos for each in parties[:2]))
    wait_until(lambda: all(each.sees() == ones for each in parties[2:]))
