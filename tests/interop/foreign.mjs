// Checks COSE_Sign1 envelopes with a CBOR library and an Ed25519 that have nothing of ours in them.
// In: one line of JSON with the key in hex, then envelopes in hex, a line each. Out: a line of JSON for each.
import { createPublicKey, verify } from "node:crypto";
import { createInterface } from "node:readline";
import { Tagged, decode, encode } from "cborg";

const SPKI = Buffer.from("302a300506032b6570032100", "hex"); // what precedes an Ed25519 key (RFC 8410)
const strict = { useMaps: true, tags: { 18: (content) => new Tagged(18, content()) } };

function check(envelope, key) {
  const { value } = decode(envelope, strict);
  const [protectedHeader, , payload, signature] = value;
  const signed = encode(["Signature1", protectedHeader, new Uint8Array(), payload]);
  const header = decode(protectedHeader, { useMaps: true });
  const receipt = decode(payload, { useMaps: true });
  const publicKey = createPublicKey({ key: Buffer.concat([SPKI, key]), format: "der", type: "spki" });
  return {
    holds: verify(null, signed, publicKey, signature),
    algorithm: header.get(1),
    subject: header.get(15).get(2),
    seq: Number(receipt.get("seq")),
    recipe: receipt.get("engine").get("recipe_id"),
  };
}

let key;
for await (const line of createInterface({ input: process.stdin })) {
  if (key === undefined) key = Buffer.from(JSON.parse(line).key, "hex");
  else console.log(JSON.stringify(check(Buffer.from(line, "hex"), key)));
}
