"""`mesh` as a conformance client: one operation a call, as PROTOCOL.md says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from conformance.blueprints import next_of_lineage, postcard_line, read_blueprint, verify_blueprint
from conformance.case import ACCEPT, NOTHING, REJECT
from conformance.replayer import replay_line
from conformance.routes import identity_line, route_line
from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Scores
from mesh.engine.reference import VOCABULARY, ReferenceEngine, stream
from mesh.errors import BadRequest, MeshError, SchemaError
from mesh.gateway.fields import millionths
from mesh.gateway.jsonbody import parse_object
from mesh.grant.caveats import TOTALS
from mesh.grant.chain import verify_grant
from mesh.grant.decision import decide
from mesh.grant.frame import Frame
from mesh.grant.revocation import parse_revoked
from mesh.grant.text import grant_from_text
from mesh.identity.document import parse_document
from mesh.identity.evidence import ForwardEvidence
from mesh.identity.handshake import check_handshake
from mesh.identity.mismatch import explain
from mesh.identity.shard import ShardIdentity
from mesh.ledger.sequence import check_run
from mesh.replay.draw import draw, seed_of
from mesh.schema import canonical
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.commitment import opening, opening_key, output_commitment
from mesh.schema.disclosure import Disclosure
from mesh.schema.energy import Energy
from mesh.schema.envelope import CHECKPOINT_TYPE, LAUNCH_TYPE, RECEIPT_TYPE, verify, verify_statement
from mesh.schema.ids import ContentId, Kind, serve_id_from_text, steward_from_text
from mesh.schema.launch import Launch
from mesh.schema.limits import MAX_PAYLOAD_BYTES, MAX_SETTINGS_BYTES, MAX_TOKENS
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import Receipt
from mesh.schema.request import (
    MILLION,
    Sampling,
    ServeRequest,
    decision_digest,
    payload_digest,
    prompt_hash_of_ids,
    prompt_hash_of_text,
    unpack_ids,
)
from mesh.schema.trust import Trust
from mesh.schema.value import Value
from mesh.schema.view import sealed_view, settings_view

V = TypeVar("V", bound=Value)

FEATURES = ("reference", "replay", "grant", "identity", "blueprint", "audit", "launch")
_TYPES = {"receipt": RECEIPT_TYPE, "checkpoint": CHECKPOINT_TYPE, "launch": LAUNCH_TYPE}


class Unread:
    """Where tokens go that nobody wants. A TokenSink."""

    def __init__(self) -> None:
        self.cancelled = CallOff()

    def put(self, token: int, scores: Scores | None = None) -> None:
        pass


class Client:
    """Answers with the line to print, None for none. Raises the MeshError of what it refuses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._operations: dict[str, Callable[..., str | None]] = {
            "decode": self.decode,
            "id": self.id,
            "millionths": lambda text: str(_millionths(text)),
            "digest": lambda name: ContentId.of_bytes(self._read(name)).text,
            "text": self.text,
            "request": lambda name: self._value(ServeRequest, name).id.text,
            "prompt-hash": self.prompt_hash,
            "decision": self.decision,
            "payload": lambda name: ContentId(payload_digest(unpack_ids(self._read(name)))).text,
            "opening": self.opening,
            "commitment": self.commitment,
            "outcome": lambda name: self._only_check(ServeOutcome, name),
            "energy": lambda name: self._only_check(Energy, name),
            "receipt": lambda name: self._value(Receipt, name).id.text,
            "checkpoint": lambda name: self._value(Checkpoint, name).id.text,
            "launch": lambda name: self._value(Launch, name).id.text,
            "disclosure": lambda name: Disclosure.from_bytes(self._read(name)).request.id.text,
            "settings": self.settings,
            "weights": self.weights,
            "receipt-view": self.receipt_view,
            "settings-view": self.settings_view,
            "trust": lambda name: str(len(self._trust(name))),
            "envelope": self.envelope,
            "sequence": self.sequence,
            "reference-tokens": self.reference_tokens,
            "reference-cache": self.reference_cache,
            "replay": self.replay,
            "audit-draw": audit_draw,
            "grant": lambda name, trust: verify_grant(self._read(name), self._trust(trust)).id.text,
            "grant-text": lambda text: ContentId.of_bytes(grant_from_text(text)).text,
            "grant-decide": self.grant_decide,
            "identity": lambda name: " ".join(self._identity(name).fingerprint.key),
            "identity-explain": lambda a, b: identity_line(explain(self._identity(a), self._identity(b)), "same", ""),
            "identity-route": self.identity_route,
            "identity-evidence": self.identity_evidence,
            "identity-handshake": self.identity_handshake,
            "postcard": lambda kind, name: postcard_line(kind, self._read(name)),
            "blueprint": lambda name: read_blueprint(self._read(name)),
            "blueprint-verify": self.blueprint_verify,
            "blueprint-lineage": lambda name, *served: next_of_lineage(self._read(name), *served),
        }

    def answer(self, op: str, arguments: Sequence[str]) -> tuple[int, str]:
        """Exit code and stdout."""
        if op == "features":
            return ACCEPT, "".join(f"{name}\n" for name in FEATURES)
        try:
            line = self._operations[op](*arguments)
        except MeshError as e:
            return REJECT, f"reject {e.code}\n"
        return ACCEPT, "" if line is None else f"{line}\n"

    def _read(self, name: str) -> bytes:
        """A file, or one that is grown here: `HEAD+COUNT+TAIL`, with COUNT times the letter a between the two."""
        if "+" not in name:
            return (self._folder / name).read_bytes()
        first, count, last = name.split("+")
        return self._read(first) + b"a" * int(count) + self._read(last)

    def _trust(self, name: str) -> Trust:
        return Trust.parse(self._read(name))

    def _value(self, model: type[V], name: str) -> V:
        return model.from_cbor(self._read(name), max_bytes=MAX_PAYLOAD_BYTES)

    def decode(self, name: str) -> None:
        canonical.decode(self._read(name), max_bytes=MAX_SETTINGS_BYTES)

    def id(self, kind: Kind, name: str) -> str:
        data = self._read(name)
        canonical.decode(data, max_bytes=MAX_SETTINGS_BYTES)
        return ContentId.of_canonical(kind, data).text

    def text(self, form: str, text: str) -> str:
        parse = {"content-id": ContentId.from_text, "steward": steward_from_text, "serve-id": serve_id_from_text}
        return parse[form](text).hex()

    def _identity(self, name: str) -> ShardIdentity:
        return ShardIdentity.from_json(self._read(name))

    def identity_route(self, known: str, purpose: str, *names: str) -> str:
        shards = [self._identity(name) for name in names]
        return route_line(shards, known, for_certification=purpose == "certify")

    def blueprint_verify(self, name: str, roots: str, listed: str, now_s: str) -> str:
        return verify_blueprint(self._read(name), self._read(roots), self._read(listed), now_s)

    def identity_evidence(self, name: str) -> str:
        rejection = ForwardEvidence.from_json(self._read(name)).rejection()
        return "certifies" if rejection is None else f"refused {rejection.reason}"

    def identity_handshake(self, local: str, peer: str) -> str:
        shown = parse_document(self._read(peer), "fingerprint")
        return identity_line(check_handshake(self._identity(local), shown), "match", "refused ")

    def prompt_hash(self, kind: str, name: str, nonce: str | None = None) -> str:
        data, key = self._read(name), None if nonce is None else _bytes(nonce)
        if kind == "ids":
            return ContentId(prompt_hash_of_ids(unpack_ids(data), key)).text
        try:
            return ContentId(prompt_hash_of_text(data.decode(), key)).text
        except UnicodeDecodeError:
            raise SchemaError("prompt: not UTF-8") from None

    def decision(self, name: str, nonce: str | None = None) -> str:
        options = canonical.decode(self._read(name), max_bytes=MAX_SETTINGS_BYTES)
        if type(options) is not list:
            raise SchemaError("options: expected an array")
        return ContentId(decision_digest(options, None if nonce is None else _bytes(nonce))).text

    def opening(self, seed: str, request_id: str, serve_id: str) -> str:
        return ContentId(opening(opening_key(_bytes(seed)), _bytes(request_id), _bytes(serve_id))).text

    def commitment(self, opened: str, request_id: str, payload: str, name: str) -> str:
        ids = unpack_ids(self._read(name))
        return ContentId(output_commitment(_bytes(opened), _bytes(request_id), _bytes(payload), ids)).text

    def _only_check(self, model: type[Value], name: str) -> None:
        self._value(model, name)

    def settings(self, name: str) -> str:
        data = self._read(name)
        canonical.decode_map(data, max_bytes=MAX_SETTINGS_BYTES)
        return ContentId.of_canonical("settings", data).text

    def weights(self, name: str) -> str:
        data = self._read(name)
        value = canonical.decode_map(data, max_bytes=MAX_SETTINGS_BYTES)
        files = value.get("files")
        if set(value) != {"files"} or not isinstance(files, list) or not files:
            raise SchemaError("weights: expected a list of files and nothing else")
        for file in files:
            if not isinstance(file, list) or list(map(type, file)) != [str, bytes] or len(file[1]) != 32:
                raise SchemaError("weights: expected a name and a digest")
        names = [file[0].encode() for file in files]
        if names != sorted(set(names)):
            raise SchemaError("weights: names must be sorted, each once")
        return ContentId.of_canonical("weights", data).text

    def receipt_view(self, name: str, trust: str) -> str:
        keys = self._trust(trust)
        return _json_digest(sealed_view(verify(self._read(name), RECEIPT_TYPE, keys)))

    def settings_view(self, name: str) -> str:
        data = self._read(name)
        value = canonical.decode_map(data, max_bytes=MAX_SETTINGS_BYTES)
        return _json_digest(settings_view(ContentId.of_canonical("settings", data), value))

    def envelope(self, kind: str, name: str, trust: str) -> str:
        keys = self._trust(trust)
        return verify(self._read(name), _TYPES[kind], keys).id.text

    def sequence(self, trust: str, *names: str) -> str:
        keys = self._trust(trust)
        statements = [verify_statement(self._read(name), keys) for name in names]
        receipts = [(sealed.value, sealed.id) for sealed in statements if isinstance(sealed.value, Receipt)]
        check_run(receipts, [sealed.value for sealed in statements if isinstance(sealed.value, Checkpoint)])
        return str(len(receipts))

    def reference_tokens(self, prompt_hash: str, max_tokens: str) -> str:
        seed, count = _start(prompt_hash, max_tokens)
        return " ".join(str(value % VOCABULARY) for value, _ in zip(stream(seed, count), range(count), strict=False))

    def reference_cache(self, *pairs: str) -> str:
        starts = [_start(pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2)]
        return " ".join(map(str, asyncio.run(cache_hits(starts))))

    def replay(self, receipt: str, disclosure: str, trust: str, replayer: str) -> str:
        given = None if disclosure == NOTHING else self._read(disclosure)
        return replay_line(self._read(receipt), given, self._trust(trust), self._read(replayer))

    def grant_decide(self, name: str, trust: str, frame: str, revoked: str = NOTHING, used: str = "0") -> str:
        keys = self._trust(trust)
        chain = verify_grant(self._read(name), keys)
        offered = self._value(Frame, frame)
        chain.check_issuer(keys, offered.now_ns)
        listed = frozenset() if revoked == NOTHING else parse_revoked(self._read(revoked))
        drawn = {(bytes(block.id), total): int(used) for block in chain.blocks for total in TOTALS}
        decision = decide(chain, offered, used=drawn, revoked=listed)
        if decision.admitted:
            return "admitted"
        first = decision.refusals[0]
        return f"refused {first.block} {first.caveat}"


def audit_draw(head: str, seed: str, count: str, size: str) -> str:
    drawn = draw(_bytes(head), seed_of("" if seed == NOTHING else seed), range(int(count)), int(size))
    return " ".join(map(str, drawn))


def _millionths(text: str) -> int:
    """As a gateway takes a number of a request."""
    try:
        number = parse_object(f'{{"number":{text}}}'.encode())["number"]
        return millionths(number, -MILLION, MILLION, param="number")
    except BadRequest as e:
        raise SchemaError(str(e)) from None


def _bytes(text: str) -> bytes:
    return b"" if text == NOTHING else bytes.fromhex(text)


def _json_digest(view: object) -> str:
    """Over the one spelling of RFC 8785. No view holds a float, so what is left of it are keys and escapes."""
    spelled = json.dumps(_sorted(view), ensure_ascii=False, separators=(",", ":"))
    return ContentId.of_bytes(spelled.encode()).text


def _sorted(view: Any) -> Any:
    if isinstance(view, dict):
        return {key: _sorted(view[key]) for key in sorted(view, key=lambda key: key.encode("utf-16-be"))}
    return [_sorted(each) for each in view] if isinstance(view, list) else view


def _start(prompt_hash: str, max_tokens: str) -> tuple[bytes, int]:
    seed, count = _bytes(prompt_hash), int(max_tokens)
    if len(seed) != 32 or not 1 <= count <= MAX_TOKENS:
        raise SchemaError("expected a prompt hash of 32 bytes and a count from 1")
    return seed, count


async def cache_hits(starts: Sequence[tuple[bytes, int]]) -> list[int]:
    """What one engine counts that serves these one after the other."""
    engine, out = ReferenceEngine(work_per_token=0, context_tokens=2 * MAX_TOKENS), []
    for prompt_hash, max_tokens in starts:
        request = ServeRequest.of(
            prompt_hash=prompt_hash,
            prompt_tokens=0,
            max_tokens=max_tokens,
            fidelity_floor=0,
            sampling=Sampling.greedy(),
        )
        served = await engine.serve(request, [], Unread())
        out.append(served.outcome.cache_hit_tokens or 0)
    await engine.close()
    return out


def main(argv: Sequence[str]) -> int:
    op, *arguments = argv
    code, out = Client(Path()).answer(op, arguments)
    sys.stdout.write(out)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
