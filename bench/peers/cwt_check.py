"""Checks COSE_Sign1 envelopes with `cwt`, over and over, for whoever writes to its standard input.

First line in: JSON with `key` (hex of the Ed25519 public key) and `envelopes` (hex of each). Then one number of checks
a line. One line out for each line in: first the version of cwt, then nanoseconds of CPU time for all those checks.
"""

import importlib.metadata
import json
import sys
import time

import cbor2
from cwt import COSE, COSEKey  # type: ignore[import-not-found]  # lives in another environment

OKP, ED25519_CURVE, ED25519 = 1, 6, -19  # RFC 9053 section 7.2, RFC 9864
KTY, KID, ALG, CRV, X = 1, 2, 3, -1, -2
CLAIMS, ISSUER, SUBJECT = 15, 1, 2  # RFC 9597


def main() -> None:
    work = json.loads(sys.stdin.readline())
    public = bytes.fromhex(work["key"])
    envelopes = [bytes.fromhex(envelope) for envelope in work["envelopes"]]
    key = COSEKey.new({KTY: OKP, CRV: ED25519_CURVE, X: public, KID: public, ALG: ED25519})
    cose = COSE.new()

    def check(number: int) -> None:
        protected, _, payload = cose.decode_with_headers(envelopes[number % len(envelopes)], key)
        value = cbor2.loads(payload)
        claims = protected[CLAIMS]
        if claims[ISSUER] != "ed25519:" + value["steward"].hex() or claims[SUBJECT] != value["engine"]["recipe_id"]:
            raise SystemExit("claims differ from the payload")

    _answer(importlib.metadata.version("cwt"))
    for line in sys.stdin:
        calls = int(line)
        start = time.process_time_ns()
        for number in range(calls):
            check(number)
        _answer(str(time.process_time_ns() - start))


def _answer(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
