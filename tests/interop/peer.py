"""What others' Python libraries make of our bytes, and make themselves. Runs in their environment, a JSON line in and a
JSON line out."""

import json
import sys

import dag_cbor
from cwt import COSE, COSEKey

KTY, KID, ALG, CRV, X, D = 1, 2, 3, -1, -2, -4


def key_of(fields):
    parts = {KTY: 1, CRV: 6, ALG: fields["alg"], KID: bytes.fromhex(fields["kid"]), X: bytes.fromhex(fields["x"])}
    if "d" in fields:
        parts[D] = bytes.fromhex(fields["d"])
    return COSEKey.new(parts)


def value_of(shown):
    """Byte strings come as {"bytes": hex}, maps as {"map": [[key, value], ...]}."""
    if isinstance(shown, list):
        return [value_of(item) for item in shown]
    if isinstance(shown, dict):
        if "bytes" in shown:
            return bytes.fromhex(shown["bytes"])
        return {key: value_of(item) for key, item in shown["map"]}
    return shown


def header_of(pairs):
    return {
        key: header_of(item["map"]) if isinstance(item, dict) and "map" in item else value_of(item)
        for key, item in pairs
    }


def answer(asked):
    match asked["op"]:
        case "verify":
            protected, unprotected, payload = COSE.new().decode_with_headers(
                bytes.fromhex(asked["envelope"]), key_of(asked["key"])
            )
            return {"payload": payload.hex(), "unprotected": len(unprotected), "subject": protected[15][2]}
        case "sign":
            sealed = COSE.new().encode(
                bytes.fromhex(asked["payload"]),
                key_of(asked["key"]),
                protected=header_of(asked["protected"]),
                unprotected=header_of(asked["unprotected"]),
            )
            return {"envelope": sealed.hex()}
        case "encode":
            return {"cbor": bytes(dag_cbor.encode(value_of(asked["value"]))).hex()}


for line in sys.stdin:
    try:
        told = answer(json.loads(line))
    except Exception as e:  # noqa: BLE001  whatever a library raises is its answer
        told = {"error": f"{type(e).__name__}: {e}"}
    print(json.dumps(told), flush=True)
