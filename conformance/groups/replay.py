"""The decision table of replay, row by row. Rows 6 and 7 are in `replay_engine`, row 8 is a checker's, which no
replayer here has."""

from __future__ import annotations

from typing import Any

from conformance.case import Group
from conformance.digests import content_id, prompt_hash_of_text
from conformance.material import (
    KEY,
    OTHER,
    REFERENCE_SETTINGS,
    Map,
    Serve,
    changed,
    digest,
    receipt,
    signed_receipt,
    trust_file,
)
from conformance.writer import item, packed

HONEST = Serve()
IDS = HONEST.output
OTHER_IDS = [IDS[0], 7, *IDS[2:]]
UNMATCHED, MATCHED = (
    "verified 10 decode prompt=checked output=differs",
    "verified 10 decode prompt=checked output=matches",
)
UNGIVEN = "verified 10 decode prompt=checked output=not-given"
FAILED: Map = {"failed": True}

GGUF = {
    "backend_id": "gguf/1.0/0123456789abcdef/x86_64-avx2/cpu/none",
    "recipe_id": "smollm2-135m",
    "settings_digest": content_id("settings", {"threads": 1}),
}
WEIGHTS = digest(11)


def decoding(ids: list[int] = IDS, **fields: Any) -> Map:
    return changed({"tokens": packed(ids), "finish": "length", "accepted": len(ids)}, **fields)


def replayer(a: Map | None = None, b: Map | None = None, **fields: Any) -> Map:
    """The reference engine as it is, unless told otherwise; B is as A."""
    first = decoding() if a is None else a
    value = {
        "backend_id": "reference/1/none/none/none/none",
        "recipe_id": "reference",
        "deterministic": True,
        "settings": REFERENCE_SETTINGS,
        "a": first,
        "b": first if b is None else b,
    }
    return changed(value, **fields)


def gguf_replayer(a: Map | None = None, b: Map | None = None, **fields: Any) -> Map:
    own = {name: GGUF[name] for name in ("backend_id", "recipe_id")}
    return replayer(a, b, **{**own, "settings": {"threads": 1}, "weights_digest": WEIGHTS, **fields})


def gguf_serve(**changes: Any) -> Serve:
    return Serve(engine={**GGUF, "weights_digest": WEIGHTS, **changes.pop("engine", {})}, **changes)


class Table:
    def __init__(self) -> None:
        self.group = Group("replay")

    def row(
        self,
        name: str,
        line: str,
        comment: str,
        serve: Serve = HONEST,
        disclosed: Map | None = None,
        by: Map | None = None,
    ) -> None:
        """`disclosed` is another disclosure than the serve's own whole one."""
        files = {
            "receipt.cbor": serve.envelope,
            "disclosure.cbor": item(serve.disclosure() if disclosed is None else disclosed),
            "replayer.cbor": item(replayer() if by is None else by),
            "trust.txt": trust_file(),
        }
        number = int(line.split()[1])
        call = "replay receipt.cbor disclosure.cbor trust.txt replayer.cbor"
        where = f"replay.{number}"
        self.group.accept(f"row-{number:02d}-{name}", call, line, where, comment, files, feature="replay")


def cases() -> Group:
    table = Table()
    _row_0(table.group)
    _row_1(table)
    _rows_2_to_4(table)
    _row_5(table)
    _rows_9_and_11(table)
    _row_10(table)
    _row_12(table)
    _rows_13_to_15(table)
    return table.group


def _row_0(group: Group) -> None:
    call = "replay receipt.cbor disclosure.cbor trust.txt replayer.cbor"
    good = {
        "receipt.cbor": HONEST.envelope,
        "disclosure.cbor": item(HONEST.disclosure()),
        "replayer.cbor": item(replayer()),
        "trust.txt": trust_file(),
    }
    retired = f"ed25519:{KEY.public.hex()} until=2026-01-01T00:00:00Z\n".encode()
    for name, error, files, comment in (
        ("structure", "structure", {"receipt.cbor": HONEST.envelope[:-1]}, "An envelope that breaks off."),
        ("signature", "signature", {"receipt.cbor": HONEST.envelope[:-1] + b"\x00"}, "A forged envelope."),
        ("payload", "payload", {"receipt.cbor": signed_receipt(receipt(prev=None))}, "A receipt that is none."),
        ("trust", "trust", {"trust.txt": trust_file(OTHER)}, "A steward whom the verifier does not know."),
        ("retired", "trust", {"trust.txt": retired}, "A key that was retired before."),
        ("trust-file", "trust-file", {"trust.txt": b""}, "A trust file without a key."),
    ):
        group.reject(f"row-00-{name}", call, error, "replay.0", comment, {**good, **files}, feature="replay")
    odd = {"disclosure.cbor": item(HONEST.disclosure(output=b"\x00"))}
    comment = "A disclosure that is none: no verdict either."
    group.reject("disclosure-none", call, "schema", "disclosure.3", comment, good | odd, feature="replay")


def _row_1(table: Table) -> None:
    line = "not-replayable 1 other-request field="
    whole, unopened = HONEST.disclosure(), HONEST.disclosure(output=None)
    longer = changed(HONEST.request, prompt_tokens=3)
    for name, field, disclosed, comment in (
        ("request", "request", changed(whole, request=changed(HONEST.request, max_tokens=5)), "Another request."),
        ("prompt", "prompt", changed(whole, prompt="ho"), "A prompt that the request does not address."),
        ("prompt-empty", "prompt", changed(whole, prompt=""), "An empty prompt is a prompt."),
        ("serve", "serve_id", changed(unopened, serve_id=bytes(16)), "Another serve of the same request."),
        (
            "serve-unmatched",
            "serve_id",
            changed(whole, serve_id=bytes(16), output=packed([1])),
            "The same, not opened.",
        ),
        ("payload", "payload", changed(unopened, payload=packed([104])), "A payload of another length."),
        ("payload-unmatched", "payload", changed(whole, payload=packed([1, 2, 3])), "The same: nothing opens with it."),
    ):
        table.row(name, line + field, comment, disclosed=disclosed)
    first = "Row 1 comes before row 2: another request of a serve that did not finish."
    table.row("first", line + "request", first, serve=CRASHED, disclosed=changed(whole, request=longer))
    of_ids = Serve(ids=True)
    table.row("prompt-of-ids", line + "prompt", "A text, where the client gave ids.", of_ids, of_ids.disclosure())
    keyed = Serve(request={"nonce": None, "prompt_hash": prompt_hash_of_text("hi")})
    table.row("prompt-no-nonce", line + "prompt", "A prompt without a nonce.", keyed, keyed.disclosure(prompt="hi "))


CRASHED = Serve(outcome={"finish": "interrupted"})


def _rows_2_to_4(table: Table) -> None:
    for finish in ("engine-error", "interrupted"):
        serve = Serve(outcome={"finish": finish})
        table.row(finish, "not-replayable 2 incomplete-serve", "A serve that did not finish.", serve)
    refused = Serve(committed=False, outcome={"finish": "refused"})
    table.row("refused", "not-replayable 2 incomplete-serve", "A serve that was refused.", refused)
    none = Serve(committed=False)
    table.row("none", "not-replayable 3 no-commitment", "A receipt without a commitment.", none)
    call = "replay receipt.cbor - trust.txt replayer.cbor"
    for name, row, serve, reason, comment in (
        ("row-04-none", 4, HONEST, "no-opening", "No disclosure at all."),
        ("row-02-no-disclosure", 2, CRASHED, "incomplete-serve", "Rows 2 and 3 need no disclosure."),
        ("row-03-no-disclosure", 3, none, "no-commitment", "Rows 2 and 3 need no disclosure."),
    ):
        files = {"receipt.cbor": serve.envelope, "replayer.cbor": item(replayer()), "trust.txt": trust_file()}
        line = f"not-replayable {row} {reason}"
        table.group.accept(name, call, line, f"replay.{row}", comment, files, feature="replay")


# Name, the field that is not true, what makes it so, and how.
UNTRUE: list[tuple[str, str, dict[str, Any], str]] = [
    ("tokens-out", "tokens_out", {"outcome": {"tokens_out": 3}}, "Fewer tokens than were committed to."),
    ("tokens-in", "tokens_in", {"outcome": {"tokens_in": 3}}, "More prompt tokens than the payload has."),
    (
        "length", "finish", {"output": IDS[:3]},
        "A serve that ended at its length, with fewer tokens than that.",
    ),
    ("max-tokens", "max_tokens", {"receipt": {"max_tokens": 5}}, "Another cap than was asked for."),
    ("prompt-hash", "prompt_hash", {"receipt": {"prompt_hash": digest(9)}}, "Another prompt than was asked with."),
    ("prompt-tokens", "prompt_tokens", {"request": {"prompt_tokens": 3}}, "A request that counts another payload."),
    ("accepted", "tokens_accepted", {"outcome": {"tokens_accepted": 5}}, "More accepted than there are."),
    ("delivered", "tokens_delivered", {"outcome": {"tokens_delivered": 5}}, "More delivered than there are."),
    ("weights", "weights_digest", {"outcome": {"weights_digest": digest(12)}}, "Other weights than the engine block."),
    (
        "first", "tokens_out", {"outcome": {"tokens_out": 3, "tokens_in": 9, "tokens_delivered": 9}},
        "The first of several that are not true.",
    ),
]  # fmt: skip


def _row_5(table: Table) -> None:
    for name, field, told, comment in UNTRUE:
        table.row(name, f"diverged 5 field={field}", comment, Serve(**told))
    lying = Serve(outcome={"tokens_out": 3}, engine={"deterministic": False})
    stranger = replayer(backend_id="gguf/1.0/none/none/none/none")
    table.row("any-engine", "diverged 5 field=tokens_out", "No engine is needed to see it.", lying, by=stranger)
    silent = Serve(outcome={"tokens_in": None, "tokens_accepted": None, "tokens_delivered": None})
    unheld = Serve(outcome={"weights_digest": WEIGHTS})
    table.row("weights-unheld", "diverged 5 field=weights_digest", "Weights that the engine block has none of.", unheld)
    table.row("absent", MATCHED, "Counts that are absent claim nothing.", silent)


def _rows_9_and_11(table: Table) -> None:
    unopened, changed_output = HONEST.disclosure(output=None), HONEST.disclosure(output=packed(OTHER_IDS))
    line = "not-replayable 9 unattributed"
    other = replayer(decoding(OTHER_IDS))
    table.row("failed", "not-replayable 9 engine-failed", "A fails.", by=replayer(FAILED, decoding()))
    broken = replayer(decoding(IDS[:3]))
    table.row("broken", "not-replayable 9 engine-failed", "A ends at its length before that.", by=broken)
    table.row("no-output", line, "Other ids, and no output to compare.", disclosed=unopened, by=other)
    table.row("other-output", line, "Other ids, and an output that is not it.", disclosed=changed_output, by=other)
    opening = HONEST.disclosure(opening=bytes(32))
    table.row("other-opening", line, "The right ids under another opening open nothing.", disclosed=opening)
    payload = HONEST.disclosure(payload=packed([104, 106]))
    table.row("other-payload", line, "The right ids of another payload open nothing.", disclosed=payload)
    failing = "not-replayable 11 engine-failed"
    table.row("failed", failing, "A gives other ids, B fails.", by=replayer(decoding(OTHER_IDS), FAILED))
    shaky = "not-replayable 11 unstable"
    table.row("ids", shaky, "A gives other ids, B the right ones.", by=replayer(decoding(OTHER_IDS), decoding()))
    two = replayer(decoding(OTHER_IDS), decoding([*OTHER_IDS[:3], 8]))
    table.row("both-other", shaky, "A and B give other ids, each others.", by=two)
    counted = replayer(decoding(accepted=3), decoding(accepted=4))
    table.row("accepted", shaky, "A and B accepted another number each.", by=counted)
    ended = replayer(decoding(finish="stop"), decoding())
    table.row("finish", shaky, "A and B end differently.", by=ended)


def _row_10(table: Table) -> None:
    table.row("honest", MATCHED, "The serve is what its receipt says.")
    table.row("not-given", UNGIVEN, "Without a disclosed output.", disclosed=HONEST.disclosure(output=None))
    forged = HONEST.disclosure(output=packed(OTHER_IDS))
    table.row("differs", UNMATCHED, "An answer that was changed after sealing.", disclosed=forged)
    shorter = HONEST.disclosure(output=packed(IDS[:3]))
    table.row("differs-shorter", UNMATCHED, "An answer that was cut after sealing.", disclosed=shorter)
    table.row("once", MATCHED, "B is not looked at.", by=replayer(decoding(), FAILED))
    table.row("uncounted", MATCHED, "An engine that does not count.", by=replayer(decoding(accepted=None)))
    table.row(
        "serve-opened",
        MATCHED,
        "What opens is the serve, whatever its id.",
        disclosed=HONEST.disclosure(serve_id=bytes(16)),
    )
    undelivered = Serve(outcome={"tokens_delivered": 2})
    table.row("delivered-below", MATCHED, "Not all of it reached the client, who may have gone.", undelivered)
    weighed = gguf_serve(outcome={"weights_digest": WEIGHTS})
    table.row("weights", MATCHED, "Weights that are named and the same.", weighed, by=gguf_replayer())
    bare = Serve(engine=GGUF)
    table.row("no-weights", MATCHED, "Weights that neither side names.", bare, by=gguf_replayer(weights_digest=None))
    stopped = Serve(output=[5, 6], outcome={"finish": "stop"})
    table.row("stop", MATCHED, "It ended by itself.", stopped, by=replayer(decoding([5, 6], finish="stop")))
    empty = Serve(output=[], outcome={"finish": "stop"})
    table.row("stop-empty", MATCHED, "It ended before the first id.", empty, by=replayer(decoding([], finish="stop")))
    _prompts(table)
    _cut(table)


def _prompts(table: Table) -> None:
    checked, unchecked = MATCHED, MATCHED.replace("=checked", "=unchecked")
    untold = HONEST.disclosure(prompt=None)
    table.row("prompt-none", unchecked, "No prompt: its ids are not what is addressed.", disclosed=untold)
    of_ids = Serve(ids=True)
    again, silent = replayer(decoding(of_ids.output)), of_ids.disclosure(prompt=None)
    table.row("prompt-ids", checked, "The client gave ids, and these are they.", of_ids, silent, again)
    right, wrong = packed([104, 105]), packed([104, 104])
    for name, encodings, line, comment in (
        ("with-control", [right, wrong], checked, "The payload is the text with its control tokens."),
        ("without-control", [wrong, right], checked, "The payload is the text without control tokens."),
        ("other-ids", [wrong, wrong], unchecked, "The payload is not the client's text."),
        ("not-encodable", [], unchecked, "The tokenizer can make nothing of the text."),
    ):
        table.row(f"prompt-{name}", line, comment, by=replayer(encodings=encodings))


def _cut(table: Table) -> None:
    """A cancelled serve ends at its last committed id."""
    cut = Serve(output=IDS[:2], outcome={"finish": "cancelled"})
    table.row("cut", f"{MATCHED} ending=cut", "The engine would have gone on.", cut)
    table.row("cut-not-given", f"{UNGIVEN} ending=cut", "Without an output.", cut, cut.disclosure(output=None))
    ended = replayer(decoding(IDS[:2], finish="stop", accepted=1))
    table.row("cut-at-end", f"{MATCHED} ending=cut", "The engine would have ended there.", cut, by=ended)
    for name, ids, comment in (
        ("cut-length", IDS[:3], "Beyond the cut the engine breaks its promise of a length: that is not looked at."),
        ("cut-length-at-end", IDS[:2], "The same, at the cut."),
    ):
        table.row(name, f"{MATCHED} ending=cut", comment, cut, by=replayer(decoding(ids)))
    nothing = Serve(output=[], outcome={"finish": "cancelled"})
    table.row("cut-at-once", f"{MATCHED} ending=cut", "Before the first id.", nothing)
    other = replayer(decoding(OTHER_IDS))
    line = f"diverged 15 at=1 served={IDS[1]} replayed=7 margin_u=unknown"
    table.row("cut", line, "Cancelling evades nothing.", cut, by=other)
    early = replayer(decoding(IDS[:1], finish="stop"))
    line = f"diverged 15 at=1 served={IDS[1]} replayed=none margin_u=unknown"
    table.row("cut-early", line, "The engine ends before the cut.", cut, by=early)
    tail = replayer(decoding(), decoding([*IDS[:2], 7, 7]))
    table.row("cut-tail", f"{MATCHED} ending=cut", "What comes after the cut is not looked at.", cut, by=tail)


def _row_12(table: Table) -> None:
    for name, field, told, comment in UNTRUE:
        serve = Serve(**told)
        if name in ("length", "prompt-tokens"):
            continue
        unopened = serve.disclosure(output=None)
        table.row(name, f"diverged 12 field={field}", f"{comment} The output is not disclosed.", serve, unopened)
    stopped = Serve(outcome={"finish": "stop"})
    table.row("finish", "diverged 12 field=finish", "The re-run ends otherwise.", stopped)
    counted = replayer(decoding(accepted=3))
    table.row("accepted-rerun", "diverged 12 field=tokens_accepted", "The re-run accepts another number.", by=counted)
    cut = Serve(output=IDS[:2], outcome={"finish": "cancelled", "tokens_in": 9})
    table.row("cut", "diverged 12 field=tokens_in", "Of a cancelled serve.", cut, cut.disclosure(output=None))


def _rows_13_to_15(table: Table) -> None:
    other = decoding(OTHER_IDS)
    bare = Serve(engine=GGUF)
    nameless = gguf_replayer(other, weights_digest=None)
    line = "not-replayable 13 unattributed"
    table.row("no-weights", line, "Nobody can say that it was the same model.", bare, by=nameless)
    margins = gguf_replayer(decoding(OTHER_IDS, margins_u=[5, 0, 5, 5]), weights_digest=None)
    table.row("before-tie", line, "Row 13 comes before row 14.", bare, by=margins)
    serve = gguf_serve()
    tied = gguf_replayer(decoding(OTHER_IDS, margins_u=[5, 0, 5, 5]))
    table.row("tie", "not-replayable 14 tie", "The best two were equal there.", serve, by=tied)
    tie = replayer(decoding(OTHER_IDS, margins_u=[5, 0]))
    table.row("tie-reference", "not-replayable 14 tie", "Of any engine.", by=tie)
    start = f"diverged 15 at=1 served={IDS[1]} replayed=7 margin_u="
    for name, told, margin, comment in (
        ("margin", {"margins_u": [0, 1_500_000, 0, 0]}, "1500000", "A margin of 1.5 logits; ties elsewhere."),
        ("margin-small", {"margins_u": [0, 1, 0, 0]}, "1", "A millionth of a logit is no tie."),
        ("margin-unknown", {}, "unknown", "An engine without logits."),
        ("margin-short", {"margins_u": [0]}, "unknown", "Margins that end before."),
    ):
        by = gguf_replayer(decoding(OTHER_IDS, **told))
        table.row(name, start + margin, comment, serve, by=by)
    table.row("reference", start + "unknown", "The reference engine needs no weights.", by=replayer(other))
    first = f"diverged 15 at=0 served={IDS[0]} replayed=9 margin_u=unknown"
    table.row("first-id", first, "At the first id.", by=replayer(decoding([9, *IDS[1:]])))
    ended = replayer(decoding(IDS[:2], finish="stop"))
    line = f"diverged 15 at=2 served={IDS[2]} replayed=none margin_u=unknown"
    table.row("ends-early", line, "The re-run ends before.", by=ended)
    stopped = Serve(output=IDS[:2], outcome={"finish": "stop"})
    line = f"diverged 15 at=2 served=none replayed={IDS[2]} margin_u=unknown"
    table.row("goes-on", line, "The re-run goes on.", stopped)
