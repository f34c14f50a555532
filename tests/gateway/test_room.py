"""Room in front of an engine, answers held for repeats, and who is let in."""

from __future__ import annotations

import asyncio

import pytest
from blake3 import blake3

from mesh.errors import Conflict, EngineUnavailable, Forbidden, Overloaded, Unauthorized, UsageError
from mesh.gateway.auth import Credential, Gatekeeper, StaticKeys, is_loopback
from mesh.gateway.repeats import Answer, Answers
from mesh.gateway.room import Room


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_room_lets_in_what_fits_and_refuses_the_rest() -> None:
    async def main() -> None:
        clock = Clock()
        room = Room(1, 1, 60, clock)
        assert await room.enter("a") is False
        waiting = asyncio.ensure_future(room.enter("a"))
        await asyncio.sleep(0)
        assert room.waiting == 1
        assert room.overloaded("a") is not None
        with pytest.raises(Overloaded) as caught:
            await room.enter("a")
        assert caught.value.retry_after_s >= 1
        clock.now = 10
        room.leave(0)
        assert await waiting is True
        assert room.waiting == 0
        assert room.overloaded("a") is None

    asyncio.run(main())


def test_room_serves_in_order_and_survives_those_who_leave() -> None:
    async def main() -> None:
        room = Room(1, 9, 60, Clock())
        await room.enter("a")
        order: list[int] = []

        async def wait(number: int) -> None:
            await room.enter("a")
            order.append(number)

        tasks = [asyncio.ensure_future(wait(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        for _ in range(3):
            room.leave(0)
            for _ in range(5):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 2, 3]
        assert room.waiting == 0

    asyncio.run(main())


def test_room_does_not_keep_anyone_forever() -> None:
    async def main() -> None:
        room = Room(1, 1, 0.01, Clock())
        await room.enter("a")
        with pytest.raises(Overloaded):
            await room.enter("a")
        room.leave(0)
        assert await room.enter("a") is False

    asyncio.run(main())


def test_room_retry_grows_with_what_serves_take_within_a_bound() -> None:
    clock = Clock()
    room = Room(1, 0, 60, clock)

    async def main() -> list[int]:
        said = []
        for took in (0.0, 40.0, 4000.0):
            await room.enter("a")
            clock.now += took
            room.leave(clock.now - took)
            await room.enter("a")
            fault = room.overloaded("a")
            assert fault is not None
            said.append(fault.retry_after_s)
            room.running -= 1
        return said

    first, second, third = asyncio.run(main())
    assert first == 1 < second < third == 60


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_room_lets_callers_take_turns_however_many_each_has_waiting() -> None:
    async def main() -> None:
        room = Room(1, 99, 60, Clock())
        await room.enter("first")
        order: list[str] = []

        async def wait(caller: str, number: int) -> None:
            await room.enter(caller)
            order.append(f"{caller}{number}")

        asked = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("a", 4), ("b", 2), ("c", 1)]
        tasks = [asyncio.ensure_future(wait(*one)) for one in asked]
        await settled()
        for _ in asked:
            room.leave(0)
            await settled()
        await asyncio.gather(*tasks)
        assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
        room.leave(0)
        assert (room.running, room.waiting) == (0, 0)

    asyncio.run(main())


def test_full_queue_turns_away_the_newest_of_who_has_most_for_who_has_none() -> None:
    async def main() -> None:
        room = Room(1, 3, 60, Clock())
        await room.enter("a")
        greedy = [asyncio.ensure_future(room.enter("a")) for _ in range(3)]
        await settled()
        assert room.overloaded("a") is not None
        assert room.overloaded("b") is None
        modest = asyncio.ensure_future(room.enter("b"))
        await settled()
        assert [task.done() for task in greedy] == [False, False, True]
        with pytest.raises(Overloaded):
            await greedy[2]
        # two against one: another of `a` would leave `b` with as many
        assert room.overloaded("b") is not None
        with pytest.raises(Overloaded):
            await room.enter("b")
        room.close()
        done = await asyncio.gather(*greedy[:2], modest, return_exceptions=True)
        assert [type(fault) for fault in done] == [EngineUnavailable] * 3

    asyncio.run(main())


def test_room_tells_its_own_patience_from_that_of_a_request() -> None:
    async def main() -> None:
        room = Room(1, 9, 60, Clock())
        await room.enter("a")
        with pytest.raises(TimeoutError):
            await room.enter("a", 0.01)
        assert room.waiting == 0
        room.leave(0)
        assert await room.enter("a", 0.01) is False

    asyncio.run(main())


def test_slot_handed_to_one_who_gives_up_at_that_moment_goes_to_the_next() -> None:
    async def main() -> None:
        room = Room(1, 9, 60, Clock())
        await room.enter("a")
        leaving, staying = (asyncio.ensure_future(room.enter(name)) for name in "bc")
        await settled()
        room.leave(0)  # to b, which has not run since
        leaving.cancel()
        assert await staying is True
        assert leaving.cancelled()
        room.leave(0)
        assert (room.running, room.waiting) == (0, 0)

    asyncio.run(main())


def answer(body: bytes) -> Answer:
    return Answer(body, "application/json", "serve", "receipt")


def test_answers_are_given_again_to_the_same_caller_and_body() -> None:
    answers = Answers(9, 1000, 60, Clock())
    answers.put("a", "k", b"mac", answer(b"x"))
    assert answers.get("a", "k", b"mac") == answer(b"x")
    assert answers.get("b", "k", b"mac") is None
    with pytest.raises(Conflict) as caught:
        answers.get("a", "k", b"other")
    assert caught.value.code == "idempotency_mismatch"


def test_answers_are_bounded_in_count_bytes_and_time() -> None:
    clock = Clock()
    answers = Answers(2, 100, 60, clock)
    for key in "abc":
        answers.put("x", key, b"", answer(b"." * 10))
    assert [answers.get("x", key, b"") is not None for key in "abc"] == [False, True, True]
    answers.put("x", "d", b"", answer(b"." * 95))
    assert [answers.get("x", key, b"") is not None for key in "bcd"] == [False, False, True]
    answers.put("x", "e", b"", answer(b"." * 101))
    assert answers.get("x", "e", b"") is None
    clock.now = 61
    assert answers.get("x", "d", b"") is None


def test_answers_can_be_turned_off() -> None:
    answers = Answers(0, 100, 60, Clock())
    answers.put("x", "a", b"", answer(b""))
    answers.put("x", "b", b"", answer(b"1"))
    assert answers.get("x", "a", b"") is answers.get("x", "b", b"") is None


KEY = "a secret of this test"
DIGEST = "b3:" + blake3(KEY.encode()).hexdigest()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)
    Gatekeeper(()).check_bind(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", "localhost.example.org", ""])
def test_other_address_needs_keys(host: str) -> None:
    with pytest.raises(UsageError, match="no keys"):
        Gatekeeper(()).check_bind(host)
    Gatekeeper([StaticKeys([DIGEST])]).check_bind(host)


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:80", "[::1]:8080", "[::1]"])
def test_without_keys_loopback_names_are_let_in(host: str) -> None:
    assert Gatekeeper(()).credential({"Host": host}) == Credential("loopback")


@pytest.mark.parametrize("host", [None, "", "evil.example:8080", "127.0.0.1.evil.example", "[::2]:80"])
def test_without_keys_a_name_that_points_here_is_refused(host: str | None) -> None:
    with pytest.raises(Forbidden):
        Gatekeeper(()).credential({} if host is None else {"Host": host})


def test_known_key_is_let_in_under_its_digest() -> None:
    gate = Gatekeeper([StaticKeys(["b3:" + "00" * 32, DIGEST])])
    for header in (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "):
        assert gate.credential({"Authorization": header, "Host": "anything"}) == Credential(f"key:{DIGEST[3:19]}")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer \udcff"]
)
def test_unknown_key_is_refused_and_not_repeated(header: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        Gatekeeper([StaticKeys([DIGEST])]).credential({} if header is None else {"Authorization": header})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("name", ["X-Api-Key", "Api-Key"])
def test_two_keys_that_differ_are_refused(name: str) -> None:
    gate = Gatekeeper([StaticKeys([DIGEST])])
    assert gate.credential({"Authorization": f"Bearer {KEY}", name: KEY}).caller == f"key:{DIGEST[3:19]}"
    with pytest.raises(Unauthorized):
        gate.credential({"Authorization": f"Bearer {KEY}", name: "another"})
    with pytest.raises(Unauthorized):
        gate.credential({name: KEY})


def test_other_kinds_of_tokens_have_their_own_authenticator() -> None:
    class Tickets:
        def authenticate(self, token: str) -> Credential | None:
            if token == "ticket-used":
                raise Unauthorized("this ticket was used", code="invalid_api_key")
            return Credential("ticket:1") if token.startswith("ticket-") else None

    gate = Gatekeeper([StaticKeys([DIGEST]), Tickets()])
    assert gate.credential({"Authorization": f"Bearer {KEY}"}).caller.startswith("key:")
    assert gate.credential({"Authorization": "Bearer ticket-1"}) == Credential("ticket:1")
    for token in ("ticket-used", "other"):
        with pytest.raises(Unauthorized):
            gate.credential({"Authorization": f"Bearer {token}"})
