"""`make fuzz`: bytes that nobody meant, into everything that reads bytes from strangers.

    python tests/fuzz/run.py [--inputs N] [--seconds N] [--seed N] [--only WORD]

Each input is a good one with some of it changed: flipped, cut, doubled, joined with another, its CBOR heads made wider
or its numbers extreme. A decoder may accept it or raise an error of this package; anything else fails the run, as does
memory that grows.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mesh.blueprint import postcard
from mesh.blueprint.body import decode_body
from mesh.blueprint.certificate import Certificate
from mesh.blueprint.container import HEADER, LOCATORS, Container
from mesh.blueprint.revocation import Revocations, revoke
from mesh.blueprint.sealing import SignatureBlock
from mesh.blueprint.verification import Policy, read_unverified
from mesh.blueprint.verification import verify as verify_blueprint
from mesh.engine.vllm_stream import EventReader, joined
from mesh.errors import MeshError
from mesh.grant.chain import verify_grant
from mesh.grant.making import close, issue
from mesh.launch.record import read_record
from mesh.runtime.archive import read_pack
from mesh.runtime.candidate import DOCUMENT, Candidate
from mesh.runtime.descriptor import Descriptor, PackedFile
from mesh.runtime.header import ending, member_header, padding
from mesh.runtime.record import CellOf, EngineOf, Machine, Measured, Record, candidate_of
from mesh.runtime.record import Energy as RecordedEnergy
from mesh.runtime.release import Release
from mesh.runtime.tree import DESCRIPTOR
from mesh.schema import canonical
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.disclosure import Disclosure
from mesh.schema.energy import Energy
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, seal, verify
from mesh.schema.launch import Launch
from mesh.schema.limits import MAX_PAYLOAD_BYTES
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import Receipt
from mesh.schema.request import ServeRequest
from tests.blueprint import bodies
from tests.schema import samples

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "vectors" / "v1"
TRUST = {samples.KEY.public}
# Numbers at their limits, indefinite items and breaks, null, NaN, tags, and counts that no input holds; then varints of
# postcard: the largest u32 and u64, one more than each holds, and longer spellings of small ones.
_HEADS = (
    "00", "17", "18ff", "19ffff", "1bffffffffffffffff", "3bffffffffffffffff", "5f", "9f", "bf", "ff", "f6", "f97e00",
    "c0", "d81c", "9bffffffffffffffff", "bb7f7f7f7f7f7f7f7f",
    "ffffffff0f", "ffffffff1f", "ffffffffffffffffff01", "ffffffffffffffffff03", "8000", "818000",
)  # fmt: skip
HEADS = tuple(map(bytes.fromhex, _HEADS))
GROWTH_BYTES = 4 << 20
PEAK_MIB = 256  # of the whole process; an input is of kilobytes

OWN = "llamacpp--quantfactory--smollm2-135m-instruct-gguf--linux-x86-64-cpu"
RELEASE = (
    b'{"schema_version": 2, "authors": [{"github_login": "a", "github_id": 1, "github_type": "User"}], '
    b'"license": "MIT", "provenance": null}'
)

Decoder = Callable[[bytes], object]


def decoders() -> dict[str, tuple[Decoder, list[bytes]]]:
    """Each with inputs that it accepts."""
    limit = MAX_PAYLOAD_BYTES
    receipt, checkpoint = Receipt.from_map(samples.receipt()), Checkpoint.from_map(samples.checkpoint())
    values: dict[str, tuple[Decoder, list[bytes]]] = {
        kind.__name__: (partial(kind.from_cbor, max_bytes=limit), [kind.from_map(fields).to_cbor()])
        for kind, fields in (
            (ServeRequest, samples.request()), (ServeOutcome, samples.outcome()), (Energy, samples.energy()),
            (Receipt, samples.receipt()), (Checkpoint, samples.checkpoint()),
            (Launch, samples.launch()),
        )
    }  # fmt: skip
    grant = issue(samples.KEY, {"model-in": [bytes(32)], "max-tokens": 5}, random=bytes)
    known = [path.read_bytes() for path in sorted(VECTORS.rglob("*.cbor")) if path.stat().st_size < 8192]
    event = (
        b'data: {"choices": [{"index": 0, "token_ids": [1, 2], "prompt_token_ids": [3], "finish_reason": null}]}\n\n'
    )
    document = (ROOT / "examples/runtime" / OWN / "runtime.json").read_bytes()
    candidate = Candidate.from_json(document)
    file = PackedFile(path=DOCUMENT, bytes=len(document), mode=0o644, sha256=hashlib.sha256(document).hexdigest())
    descriptor = Descriptor.made(candidate, [file])
    return values | blueprint_decoders() | {
        "runtime.json": (Candidate.from_json, [document]),
        "release.json": (Release.from_json, [RELEASE]),
        "pack": (lambda data: read_pack(io.BytesIO(data)), [packed(descriptor, document)]),
        "descriptor": (Descriptor.from_json, [descriptor.to_json()]),
        "record": (lambda data: Record.from_json(data, what="record"), [record(candidate, descriptor)]),
        "canonical": (lambda data: canonical.decode(data, max_bytes=limit), [receipt.to_cbor(), *known]),
        "disclosure": (Disclosure.from_bytes, [Disclosure.from_map(samples.disclosure()).to_cbor()]),
        "envelope": (lambda data: verify(data, RECEIPT_TYPE, TRUST), [seal(receipt, samples.KEY).envelope, *known]),
        "checkpoint envelope": (
            lambda data: verify(data, CHECKPOINT_TYPE, TRUST), [seal(checkpoint, samples.KEY).envelope]
        ),
        "launch record": (read_record, [seal(Launch.from_map(samples.launch()), samples.KEY).envelope]),
        "grant": (lambda data: verify_grant(data, TRUST), [grant, close(verify_grant(grant, TRUST))]),
        "vllm events": (read_events, [event * 2 + b"data: [DONE]\n\n"]),
    }  # fmt: skip


def read_events(data: bytes) -> None:
    """Both ways in which they are read, which say the same."""
    plain, events = EventReader().plain(data), joined(list(EventReader().feed(data)))
    assert plain is None or plain == list(events)


def blueprint_decoders() -> dict[str, tuple[Decoder, list[bytes]]]:
    """Files, with and without a hash that was mended for what was changed, and each of their parts by itself."""
    made = bodies.body()
    files = [bodies.kbp(made), bodies.kbp(made, full=False), bodies.kbp(made, key=None)]
    container = Container.of_bytes(files[0])
    trusted, keys = bodies.policy(), {bodies.ROOT.public.id: bodies.ROOT.public}
    listed = revoke(bodies.ROOT, (bytes(32),), number=1, made_s=1, until_s=2)
    return {
        "blueprint": (lambda data: blueprint_of(data, trusted), files),
        "blueprint with its hash": (lambda data: read_unverified(Container.of_bytes(mended(data))), files),
        "blueprint body": (decode_body, [container.body]),
        "blueprint locators": (partial(postcard.decode, LOCATORS), [container.locator_table]),
        "signature block": (SignatureBlock.from_bytes, [container.signature_block]),
        "certificate": (Certificate.from_bytes, [bodies.certificate().data]),
        "revocations": (lambda data: Revocations.from_bytes(data, keys), [listed]),
    }


def blueprint_of(data: bytes, trusted: Policy) -> object:
    return verify_blueprint(Container.of_bytes(data), trusted)


def mended(data: bytes) -> bytes:
    """With the lengths and the hash that its header should have, as far as it has a header."""
    if len(data) < HEADER.size:
        return data
    magic, version, flags, body, locators, payloads, signature, _ = HEADER.unpack(data[: HEADER.size])
    body = min(body, len(data) - HEADER.size)
    rest = len(data) - HEADER.size - body
    locators, payloads = min(locators, rest), min(payloads, max(rest - locators, 0))
    signature = rest - locators - payloads
    digest = hashlib.sha256(data[HEADER.size : HEADER.size + body]).digest()
    return HEADER.pack(magic, version, flags, body, locators, payloads, signature, digest) + data[HEADER.size :]


def packed(descriptor: Descriptor, document: bytes) -> bytes:
    out = b""
    for path, data in ((DESCRIPTOR, descriptor.to_json()), (DOCUMENT, document)):
        out += member_header(path, len(data), 0o644) + data + bytes(padding(len(data)))
    return out + bytes(ending(len(out)))


def record(candidate: Candidate, descriptor: Descriptor) -> bytes:
    b3 = "b3:" + "0" * 64
    return Record(
        schema_version=1, prompts="p/1", steward="ed25519:" + "0" * 64, began_ms=1, ended_ms=2,
        candidate=candidate_of(candidate, descriptor, candidate.payload_id),
        machine=Machine(system="s", release="r", architecture="a", processor="p", cores=1, python="3", mesh="0"),
        engines=[EngineOf(backend_id="b", settings_digest=b3, deterministic=True)],
        cells=[
            CellOf(
                context=0, part="cases", case="64", domain="code", prompt_tokens=64, concurrency=1, repetition=0,
                wall_ns=2, samples=[],
                requests=[
                    Measured(receipt=b3, tokens_in=64, tokens_out=8, finish="length", first_ns=1, total_ns=2,
                             energy=RecordedEnergy(basis="absent"))
                ],
            )
        ],
    ).to_json()  # fmt: skip


def changed(data: bytes, others: list[bytes], random: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(out) + 1)
        match random.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case 1 if at < len(out):
                out[at] = random.randrange(256)
            case 2:
                del out[at:]
            case 3:
                del out[at : at + random.randrange(1, 40)]
            case 4:
                out[at:at] = out[at : at + random.randrange(1, 40)]
            case 5:
                out[at:at] = random.choice(HEADS)
            case 6 if at < len(out):
                out[at : at + 1] = random.choice(HEADS)
            case 7:
                other = random.choice(others)
                out[at:] = other[random.randrange(len(other) + 1) :]
    return bytes(out)


def inputs(count: int, seed: int, only: str) -> Iterator[tuple[str, Decoder, bytes]]:
    chance = random.Random(seed)
    table = {name: each for name, each in decoders().items() if name.startswith(only)}
    names = list(table)
    everything = [data for _, good in table.values() for data in good]
    for number in range(count):
        name = names[number % len(names)]
        decode, good = table[name]
        yield name, decode, changed(chance.choice(good), everything, chance)


def peak_mib() -> int:
    """Of this process's memory, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # KiB on Linux


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (a million)")
    parser.add_argument("--seconds", type=int, default=1800, help="at most so long (1800)")
    parser.add_argument("--seed", type=int, default=1, help="which (1)")
    parser.add_argument("--only", default="", metavar="WORD", help="decoders whose name begins so")
    args = parser.parse_args()
    accepted = refused = 0
    ends = time.monotonic() + args.seconds
    for number, (name, decode, data) in enumerate(inputs(args.inputs, args.seed, args.only), start=1):
        try:
            decode(data)
            accepted += 1
        except MeshError:
            refused += 1
        except BaseException as e:  # noqa: BLE001  that is what is looked for
            print(f"{name}: {type(e).__name__}: {e}\n{data.hex()}")
            return 1
        if number == args.inputs // 10:
            # what caches hold by then they may hold; from here on nothing may be added to it
            tracemalloc.start()
        if number == 2 * (args.inputs // 10):  # tracing takes most of the time, so after that the whole is looked at
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            if held > GROWTH_BYTES:
                print(f"{held} bytes more are held than after the first tenth")
                return 1
        if number % 10_000 == 0:
            if (most := peak_mib()) > PEAK_MIB:
                print(f"{most} MiB were held")
                return 1
            if time.monotonic() > ends:
                break
            print(f"{number} inputs", file=sys.stderr, end="\r", flush=True)
    told = f"{accepted} accepted, {refused} refused, nothing else; {peak_mib()} MiB at most"
    print(f"{accepted + refused} inputs, seed {args.seed}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
