"""Requests: every bound of every field, prompt hashes and payload digests."""

from __future__ import annotations

from typing import Any

from conformance.case import Group, dashed
from conformance.digests import b3, content_id, decision_digest, payload_digest, prompt_hash_of_ids, prompt_hash_of_text
from conformance.material import (
    MAX_COUNT,
    MAX_ID,
    MAX_UINT,
    Map,
    digest,
    greedy,
    request,
    sampled,
    small_request,
)
from conformance.writer import Raw, item, mapping, packed, text

BILLION = 1_000_000_000


def with_sampling(**fields: Any) -> Map:
    return request(sampling=sampled(**fields))


GOOD: list[tuple[str, Map, str]] = [
    ("minimal", small_request(), "Greedy, without any optional field."),
    ("full", request(), "Every field there."),
    ("joule-ceiling", small_request(joule_ceiling_uj=0), "With a ceiling, which may be 0."),
    ("model", small_request(model="m"), "With a model."),
    ("decision", small_request(decision=digest(3)), "With a decision."),
    ("nonce", small_request(nonce=digest(4)), "With a nonce."),
    ("grammar", small_request(sampling=greedy(grammar=digest(1))), "With a grammar."),
    (
        "highest",
        request(
            prompt_tokens=MAX_COUNT, max_tokens=MAX_COUNT, fidelity_floor=3, joule_ceiling_uj=MAX_UINT, model="m" * 256,
            sampling=sampled(
                temperature_u=100_000_000, top_p_u=1_000_000, top_k=MAX_ID, min_p_u=1_000_000,
                frequency_penalty_u=BILLION, presence_penalty_u=BILLION, repetition_penalty_u=100_000_000,
                logit_bias=[[MAX_ID, BILLION]], seed=MAX_ID - 1, stop_ids=[MAX_ID],
            ),
        ),
        "Every number at its highest.",
    ),
    (
        "lowest",
        request(
            prompt_tokens=0, max_tokens=1, fidelity_floor=0,
            sampling=sampled(
                temperature_u=1, top_p_u=0, top_k=0, min_p_u=0, frequency_penalty_u=-BILLION,
                presence_penalty_u=-BILLION, repetition_penalty_u=1, logit_bias=[[0, -BILLION]], seed=0, stop_ids=[0],
            ),
        ),
        "Every number at its lowest.",
    ),
    ("stop-16", with_sampling(stop=[f"s{n}" for n in range(16)]), "16 stop strings."),
    ("stop-order", with_sampling(stop=["b", "a", "\x00"]), "Stop strings have no order, and hold any character."),
    ("stop-1024", with_sampling(stop=["é" * 512]), "A stop string of 1024 bytes."),
    ("stop-ids-256", with_sampling(stop_ids=list(range(256))), "256 stop ids."),
    ("logit-bias-1024", with_sampling(logit_bias=[[n, 1] for n in range(1024)]), "1024 biases."),
    ("model-unicode", small_request(model="🙂" * 256), "256 characters of four bytes, and of two units in UTF-16."),
]  # fmt: skip

REQUIRED = ("prompt_hash", "prompt_tokens", "max_tokens", "fidelity_floor", "sampling")

SHAPES: list[tuple[str, Map, str]] = [
    *((f"no-{dashed(name)}", small_request(**{name: None}), f"{name} is missing.") for name in REQUIRED),
    *(
        (f"no-sampling-{dashed(name)}", small_request(sampling=greedy(**{name: None})), f"{name} is missing.")
        for name in greedy()
    ),
    ("unknown-field", small_request(temperature_u=0), "A field that is not in the CDDL."),
    ("unknown-sampling", with_sampling(best_of=1), "A field that is not in the CDDL."),
    ("prompt-hash-short", small_request(prompt_hash=bytes(31)), "31 bytes."),
    ("prompt-hash-text", small_request(prompt_hash="b3:" + "00" * 32), "The text form, which CBOR never holds."),
    ("prompt-tokens-high", small_request(prompt_tokens=MAX_COUNT + 1), "2^31."),
    ("prompt-tokens-negative", small_request(prompt_tokens=-1), "Below 0."),
    ("max-tokens-zero", small_request(max_tokens=0), "No tokens at all."),
    ("max-tokens-high", small_request(max_tokens=MAX_COUNT + 1), "2^31."),
    ("max-tokens-boolean", small_request(max_tokens=True), "A boolean is no integer."),
    ("max-tokens-text", small_request(max_tokens="4"), "Text is no integer."),
    ("fidelity-high", small_request(fidelity_floor=4), "There are 0 to 3."),
    ("joule-ceiling-high", small_request(joule_ceiling_uj=MAX_UINT + 1), "2^63."),
    ("joule-ceiling-negative", small_request(joule_ceiling_uj=-1), "Below 0."),
    ("model-empty", small_request(model=""), "A name has a character."),
    ("model-long", small_request(model="m" * 257), "257 characters."),
    ("model-control", small_request(model="a\nb"), "A line break in a name."),
    ("model-c1", small_request(model="a\x85b"), "A control character beyond ASCII in a name."),
    ("model-separator", small_request(model="a\u2028b"), "A line separator in a name."),
    ("model-bytes", small_request(model=b"m"), "A byte string is no text."),
    ("decision-long", small_request(decision=bytes(33)), "33 bytes."),
    ("nonce-short", small_request(nonce=bytes(31)), "31 bytes."),
    ("sampling-array", small_request(sampling=[]), "An array is no map."),
    ("temperature-high", with_sampling(temperature_u=100_000_001), "Above 100."),
    ("temperature-negative", with_sampling(temperature_u=-1), "Below 0."),
    ("top-p-high", with_sampling(top_p_u=1_000_001), "Above 1."),
    ("top-p-negative", with_sampling(top_p_u=-1), "Below 0."),
    ("top-k-high", with_sampling(top_k=MAX_ID + 1), "2^32."),
    ("top-k-negative", with_sampling(top_k=-1), "Below 0."),
    ("min-p-high", with_sampling(min_p_u=1_000_001), "Above 1."),
    ("min-p-negative", with_sampling(min_p_u=-1), "Below 0."),
    ("frequency-high", with_sampling(frequency_penalty_u=BILLION + 1), "Above 1000."),
    ("frequency-low", with_sampling(frequency_penalty_u=-BILLION - 1), "Below -1000."),
    ("presence-high", with_sampling(presence_penalty_u=BILLION + 1), "Above 1000."),
    ("presence-low", with_sampling(presence_penalty_u=-BILLION - 1), "Below -1000."),
    ("repetition-zero", with_sampling(repetition_penalty_u=0), "0 would divide by 0."),
    ("repetition-high", with_sampling(repetition_penalty_u=100_000_001), "Above 100."),
    ("bias-1025", with_sampling(logit_bias=[[n, 1] for n in range(1025)]), "1025 biases."),
    ("bias-single", with_sampling(logit_bias=[[1]]), "An id without its bias."),
    ("bias-triple", with_sampling(logit_bias=[[1, 1, 1]]), "A third element."),
    ("bias-map", with_sampling(logit_bias={"1": 1}), "A map is no array."),
    ("bias-id-high", with_sampling(logit_bias=[[MAX_ID + 1, 1]]), "The id 2^32."),
    ("bias-id-negative", with_sampling(logit_bias=[[-1, 1]]), "An id below 0."),
    ("bias-high", with_sampling(logit_bias=[[1, BILLION + 1]]), "Above 1000."),
    ("bias-low", with_sampling(logit_bias=[[1, -BILLION - 1]]), "Below -1000."),
    ("seed-high", with_sampling(seed=MAX_ID), "2^32-1, which some engines read as no seed."),
    ("seed-negative", with_sampling(seed=-1), "Below 0."),
    ("stop-17", with_sampling(stop=[f"s{n}" for n in range(17)]), "17 stop strings."),
    ("stop-empty", with_sampling(stop=[""]), "An empty stop string would stop everything."),
    ("stop-text", with_sampling(stop="END"), "Text is no array."),
    ("stop-bytes", with_sampling(stop=[b"END"]), "A byte string is no text."),
    ("stop-ids-257", with_sampling(stop_ids=list(range(257))), "257 stop ids."),
    ("stop-id-high", with_sampling(stop_ids=[MAX_ID + 1]), "The id 2^32."),
    ("stop-id-negative", with_sampling(stop_ids=[-1]), "An id below 0."),
    ("ignore-eos-integer", with_sampling(ignore_eos=0), "An integer is no boolean."),
    ("grammar-short", with_sampling(grammar=bytes(31)), "31 bytes."),
]

BEYOND: list[tuple[str, Map, str]] = [
    ("seed-greedy", small_request(sampling=greedy(seed=1)), "A seed where nothing is drawn."),
    ("bias-order", with_sampling(logit_bias=[[7, 1], [5, 1]]), "Ids in another order."),
    ("bias-twice", with_sampling(logit_bias=[[5, 1], [5, 2]]), "One id twice."),
    ("stop-ids-order", with_sampling(stop_ids=[7, 2]), "Ids in another order."),
    ("stop-ids-twice", with_sampling(stop_ids=[2, 2]), "One id twice."),
    ("stop-twice", with_sampling(stop=["a", "a"]), "One string twice."),
    ("stop-1025", with_sampling(stop=["é" * 512 + "a"]), "513 characters, but 1025 bytes of UTF-8."),
]


def cases() -> Group:
    group = Group("request")
    for name, value, comment in GOOD:
        line = b3(content_id("request", value))
        group.accept(name, "request input.cbor", line, "request.3", comment, {"input.cbor": item(value)})
    for rule, faults in ((2, SHAPES), (3, BEYOND)):
        for name, value, comment in faults:
            files = {"input.cbor": item(value)}
            group.reject(name, "request input.cbor", "schema", f"request.{rule}", comment, files)
    pairs = [(text(name), item(value)) for name, value in small_request().items()]
    for name, data, comment in (
        ("not-a-map", item([small_request()]), "An array where a map has to be."),
        ("key-order", mapping(sorted(pairs, reverse=True)), "The fields in another order."),
        ("field-twice", mapping(sorted([*pairs, pairs[1]])), "A field twice."),
        ("wide", item(small_request(max_tokens=Raw(b"\x18\x04"))), "4 in two bytes."),
        ("null", item(small_request(model=Raw(b"\xf6"))), "A null where the field should be left out."),
        ("float", item(small_request(max_tokens=Raw(b"\xf9\x44\x00"))), "4.0 as a float."),
        ("trailing", item(small_request()) + b"\x00", "A byte after the map."),
    ):
        group.reject(name, "request input.cbor", "encoding", "request.1", comment, {"input.cbor": data})
    _prompts(group)
    _decisions(group)
    return group


def _prompts(group: Group) -> None:
    nonce = digest(4)
    keyed = f" {nonce.hex()}"
    for name, prompt, comment in (
        ("text", "hi", "A prompt of two bytes."),
        ("text-empty", "", "An empty prompt is the byte 0x00."),
        ("text-unicode", "<|user|>hé 🙂\n", "The bytes of its UTF-8."),
        ("text-long", "x" * 3000, "More than one chunk of BLAKE3."),
    ):
        files = {"prompt.txt": prompt.encode()}
        call, line = "prompt-hash text prompt.txt", b3(prompt_hash_of_text(prompt))
        group.accept(f"prompt-{name}", call, line, "request", comment, files)
        line = b3(prompt_hash_of_text(prompt, nonce))
        group.accept(f"prompt-{name}-nonce", call + keyed, line, "request", f"{comment} Keyed by a nonce.", files)
    for name, ids, comment in (
        ("none", [], "No ids at all."),
        ("ids", [104, 105, MAX_ID], "Three ids, the highest among them."),
        ("ids-300", list(range(300)), "1200 bytes: more than one chunk of BLAKE3."),
    ):
        files = {"ids.bin": packed(ids)}
        group.accept(f"payload-{name}", "payload ids.bin", b3(payload_digest(ids)), "request", comment, files)
        call, line = "prompt-hash ids ids.bin", b3(prompt_hash_of_ids(ids))
        group.accept(f"prompt-{name}", call, line, "request", comment, files)
        line = b3(prompt_hash_of_ids(ids, nonce))
        group.accept(f"prompt-{name}-nonce", call + keyed, line, "request", f"{comment} Keyed by a nonce.", files)
    one, words = {"ids.bin": packed([1])}, {"prompt.txt": b"hi"}
    cut = {"ids.bin": packed([1, 2])[:-1]}
    for name, call, files, comment in (
        ("prompt-not-utf8", "prompt-hash text prompt.txt", {"prompt.txt": b"h\xff"}, "Bytes that are no text."),
        ("prompt-nonce-short", f"prompt-hash text prompt.txt {'00' * 31}", words, "A nonce of 31 bytes."),
        ("prompt-nonce-long", f"prompt-hash ids ids.bin {'00' * 33}", one, "A nonce of 33 bytes."),
        ("prompt-ids-cut", "prompt-hash ids ids.bin", cut, "Seven bytes are no ids of four."),
        ("payload-cut", "payload ids.bin", cut, "Seven bytes are no ids of four."),
    ):
        group.reject(name, call, "schema", "request", comment, files)


def _decisions(group: Group) -> None:
    nonce = digest(4)
    call = "decision options.cbor"
    for name, options, comment in (
        ("two", ["yes", "no"], "Two options, not in any order."),
        ("unicode", ["是", "no 🙂", "no"], "The bytes of their UTF-8; one begins like another."),
        ("many", [f"option {i}" for i in range(300)], "More than one chunk of BLAKE3."),
    ):
        files = {"options.cbor": item(options)}
        line = b3(decision_digest(options))
        group.accept(f"decision-{name}", call, line, "request", comment, files)
        line = b3(decision_digest(options, nonce))
        keyed = f"{comment} Keyed by a nonce."
        group.accept(f"decision-{name}-nonce", f"{call} {nonce.hex()}", line, "request", keyed, files)
    two = item(["yes", "no"])
    for name, data, kind, comment in (
        ("one", item(["yes"]), "schema", "One option is none."),
        ("none", item([]), "schema", "No options."),
        ("twice", item(["yes", "no", "yes"]), "schema", "One is there twice."),
        ("empty", item(["yes", ""]), "schema", "One is empty."),
        ("bytes", item(["yes", b"no"]), "schema", "One is a byte string."),
        ("map", item({"yes": 1, "no": 2}), "schema", "A map is no array."),
        ("long-head", b"\x98\x02" + two[1:], "encoding", "The array's length in two bytes where one would do."),
        ("more", two + b"\x00", "encoding", "Something follows."),
    ):
        group.reject(f"decision-{name}", call, kind, "request", comment, {"options.cbor": data})
    short = f"{call} {'00' * 31}"
    group.reject("decision-nonce-short", short, "schema", "request", "A nonce of 31 bytes.", {"options.cbor": two})
