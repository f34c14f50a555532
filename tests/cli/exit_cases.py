"""What each command ends with, one line a case: its command line, its exit code, and what it has to say."""

from __future__ import annotations

STEWARD = "ed25519:" + "07" * 32
WEAK = "ed25519:01" + "00" * 31
EARLY, LATE = "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"

# Names are those of the fixture `place`; `none` does not exist, `new-...` is made by its case.
# The command line, its exit code, and what it has to say: on stderr where it failed, else on either stream.
CASES = f"""
                                                                      | 2  | COMMAND
--version                                                             | 0  | mesh 0.
nope                                                                  | 2  | 'nope'
verify --nope good.cbor --trust trust                                 | 2  | --nope
verify good.cbor --tru trust                                          | 2  | --trust

verify good.cbor --trust trust                                        | 0  | good: good.cbor
verify state --trust trust                                            | 0  | 3 good receipts
verify good.cbor --trust stranger                                     | 11 | cannot be decided: good.cbor: trust
verify none --trust trust                                             | 3  | none: no such file or directory
verify folder --trust trust                                           | 3  | folder: no ledger and no receipts
verify empty --trust trust                                            | 10 | refused: empty: structure
verify garbage --trust trust                                          | 10 | refused: garbage: structure
verify damaged --trust trust                                          | 10 | refused: damaged: ledger-corrupt
verify blank --trust trust                                            | 10 | is not a ledger
verify closed --trust trust                                           | 3  | permission denied
verify good.cbor none --trust trust                                   | 3  | none: no such file or directory
verify good.cbor                                                      | 2  | --trust
verify --trust trust                                                  | 2  | FILE
verify good.cbor --trust none                                         | 3  | none: no such file or directory
verify good.cbor --trust folder                                       | 3  | folder: is a directory
verify good.cbor --trust empty                                        | 2  | empty: holds no key
verify good.cbor --trust garbage                                      | 2  | garbage: not a text file of keys
verify good.cbor --trust ed25519:00                                   | 2  | --trust
verify good.cbor --trust {WEAK}                                       | 2  | {WEAK}

receipts                                                              | 2  | ACTION
receipts list --state state                                           | 0  | 3 receipts of ed25519:
receipts list --state none                                            | 3  | none: no ledger here
receipts list --state folder                                          | 3  | folder: no ledger here
receipts list --state garbage                                         | 3  | garbage: no ledger here
receipts list --state damaged                                         | 10 | damaged/ledger.sqlite
receipts list --state blank                                           | 10 | is not a ledger
receipts list --state closed                                          | 3  | permission denied
receipts list --state state --limit 0                                 | 2  | '0' is not a positive whole number
receipts list --state state --limit 1 --all                           | 2  | --all
receipts show 0 --state state                                         | 0  | seq 0, the steward's first
receipts show 99 --state state                                        | 10 | receipt 99: not in this ledger
receipts show nonsense --state state                                  | 2  | 'nonsense' is not a receipt id
receipts show 0 --state damaged                                       | 10 | damaged/ledger.sqlite
receipts show --state state                                           | 2  | ID
receipts export 0 --state state --out new-receipt                     | 0  | 1 receipt written to new-receipt
receipts export --all --state state --out new-archive.cborseq         | 0  | 3 receipts written
receipts export 0 --state state --out good.cbor                       | 3  | good.cbor: file exists
receipts export 0 --state state --out none/receipt                    | 3  | no such file or directory
receipts export 0 --state none --out new-1                            | 3  | none: no ledger here
receipts export --state state --out new-2                             | 2  | ID --all
receipts export 0 --state state                                       | 2  | --out

disclose 0 --state state --out new-disclosure                         | 0  | written to new-disclosure
disclose 2 --state state --out new-3                                  | 10 | kept
disclose 9 --state state --out new-4                                  | 10 | receipt 9: not in this ledger
disclose 0 --state none --out new-5                                   | 3  | none: no ledger here
disclose 0 --state closed --out new-6                                 | 3  | permission denied
disclose 0 --state state --out good.cbor                              | 3  | good.cbor: file exists
disclose 0 --state state                                              | 2  | --out
disclose --state state --out new-7                                    | 2  | ID --from-answer
disclose --from-answer none --out new-8                               | 3  | none: no such file or directory
disclose --from-answer folder --out new-9                             | 3  | folder: is a directory
disclose --from-answer empty --out new-10                             | 10 | empty: not JSON
disclose --from-answer garbage --out new-11                           | 10 | garbage: not JSON
disclose --from-answer plain.json --out new-12                        | 10 | plain.json: no mesh.disclosure in it

replay good.cbor good.disclosure --trust trust --reference            | 0  | Verified by decode
replay good.cbor changed.disclosure --trust trust --reference         | 10 | output: differs
replay false.cbor false.disclosure --trust trust --reference          | 10 | Diverged at output token 3
replay good.cbor --trust trust --reference                            | 11 | NotReplayable(no-opening)
replay good.cbor good.disclosure --trust trust --reference --name x   | 11 | NotReplayable(other-recipe)
replay good.cbor good.disclosure --trust stranger --reference         | 11 | ed25519:
replay none good.disclosure --trust trust --reference                 | 3  | none: no such file or directory
replay folder good.disclosure --trust trust --reference               | 3  | folder: is a directory
replay empty good.disclosure --trust trust --reference                | 10 | empty: envelope
replay garbage good.disclosure --trust trust --reference              | 10 | garbage: envelope
replay good.cbor none --trust trust --reference                       | 3  | none: no such file or directory
replay good.cbor folder --trust trust --reference                     | 3  | folder: is a directory
replay good.cbor empty --trust trust --reference                      | 10 | empty: malformed cbor
replay good.cbor garbage --trust trust --reference                    | 10 | garbage: malformed cbor
replay good.cbor good.disclosure --trust trust --gguf none            | 3  | none: no such file or directory
replay good.cbor good.disclosure --trust trust --gguf garbage         | 10 | garbage: magic
replay good.cbor good.disclosure --trust trust                        | 2  | --gguf --reference
replay good.cbor good.disclosure --trust trust --reference --slots 2  | 2  | --slots

audit state --trust trust                                             | 0  | audit: good
audit good.cbor state --trust trust                                   | 0  | 1 envelope given more than once
audit state --trust trust --reference                                 | 11 | NotReplayable (no-opening 1)
audit false.cbor --trust trust                                        | 0  | nothing was replayed
audit good.cbor --trust stranger                                      | 11 | is not in the trust set
audit empty --trust trust                                             | 10 | wrong: envelope 1
audit damaged --trust trust                                           | 10 | damaged
audit none --trust trust                                              | 3  | none: no such file or directory
audit folder --trust trust                                            | 3  | folder: no ledger and no receipts
audit closed --trust trust                                            | 3  | permission denied
audit state --trust trust --html good.cbor                            | 3  | good.cbor: file exists
audit state --trust trust --gguf none                                 | 3  | none: no such file or directory
audit state --trust trust --reference --disclosures none              | 3  | none: no such file or directory
audit state --trust trust --reference --resume good.cbor              | 2  | --resume good.cbor
audit state --trust trust --sample 1                                  | 2  | --sample and --seed come together
audit - --trust trust                                                 | 2  | more than once
audit http://127.0.0.1:9 --trust trust                                | 3  | http://127.0.0.1:9
audit http: --trust trust                                             | 3  | http:
audit state                                                           | 2  | --trust
audit --trust trust                                                   | 2  | SOURCE

key                                                                   | 2  | ACTION
key show --state state                                                | 0  | ed25519:
key show --state none                                                 | 3  | none
key show --state folder                                               | 3  | folder/key: does not exist
key show --state garbage                                              | 3  | garbage/key
key show --state blank                                                | 3  | blank/key: malformed
key show --state closed                                               | 3  | closed/key
key backup --state state --out new-key                                | 0  | copied to new-key
key backup --state state --out good.cbor                              | 3  | good.cbor: exists already
key backup --state state                                              | 2  | --out

grant                                                                 | 2  | ACTION
grant issue --key state/key --max-tokens 9                            | 0  | mg1_
grant issue --key state/key --max-tokens 9 --out new-grant            | 0  | written to new-grant
grant issue --key new-k --not-before {LATE} --not-after {EARLY}       | 2  | --not-before is after --not-after
grant attenuate good.grant --not-before {LATE} --not-after {EARLY}    | 2  | --not-before is after --not-after
grant issue --key state/key --out good.cbor                           | 3  | good.cbor: file exists
grant issue --key new-issuer/key --total-uj 5                         | 10 | steward-in
grant issue --key blank/key                                           | 3  | blank/key: malformed
grant issue --key state/key --max-tokens 0                            | 2  | max-tokens must state
grant issue --key state/key --fidelity-at-least 4                     | 2  | fidelity-at-least must state
grant attenuate good.grant --fidelity-at-least 4                      | 2  | fidelity-at-least must state
grant issue --key none/key                                            | 3  | none: no such file or directory
grant issue --key state/key --model-in x                              | 2  | --model-in
grant issue                                                           | 2  | --key
grant attenuate good.grant --max-tokens 5                             | 0  | mg1_
grant attenuate none                                                  | 3  | none: no such file or directory
grant attenuate garbage                                               | 10 | does not start with mg1_, expected
grant close good.grant                                                | 0  | mg1_
grant inspect good.grant                                              | 0  | max-tokens: 9
grant inspect mg1_AAAA                                                | 10 | not the canonical encoding
grant inspect folder                                                  | 3  | folder: is a directory
grant inspect                                                         | 2  | GRANT
grant check good.grant --trust trust                                  | 0  | good
grant check good.grant --trust stranger                               | 11 | not in the trust set
grant check good.grant --trust trust --revoked none                   | 3  | none: no such file or directory
grant check good.grant --trust trust --revoked garbage                | 2  | not a text file of block ids
grant check good.grant --trust trust --revoked pipe                   | 2  | pipe: not a regular file
grant check good.grant --trust trust --steward {STEWARD} --answer 10  | 10 | offered 10
grant check good.grant                                                | 2  | --trust
grant revoke good.grant --list new-list                               | 0  | is on new-list
grant revoke good.grant --list garbage                                | 2  | not a text file of block ids
grant revoke good.grant --list new-list-2 --block 1                   | 2  | blocks 0 to 0
grant balance good.grant --url http://127.0.0.1:1                     | 3  | 127.0.0.1:1
grant balance good.grant --url nonsense                               | 2  | --url

weights                                                               | 2  | ACTION
blueprint                                                             | 2  | ACTION
blueprint keygen --out new-signer                                     | 0  | key id
blueprint keygen --out good.cbor                                      | 3  | good.cbor: exists already
blueprint build --out new-13                                          | 2  | --gguf
blueprint build --gguf garbage --out new-14                           | 10 | garbage: magic
blueprint build --gguf none --out new-15                              | 3  | none: no such file or directory
blueprint inspect garbage                                             | 10 | garbage: blueprint: magic
blueprint inspect empty                                               | 10 | empty: blueprint: 0 bytes
blueprint inspect none                                                | 3  | none: no such file or directory
blueprint diff garbage garbage                                        | 10 | garbage: blueprint: magic
blueprint verify garbage                                              | 2  | --blueprint-root
blueprint verify garbage --blueprint-root trust --blueprint-revoked x | 2  | trust: line 1
blueprint sign garbage --key none --cert none --out new-16            | 3  | none: does not exist
blueprint history --state state                                       | 0  |
blueprint history --state none                                        | 3  | none: no ledger here

weights digest tiny.gguf                                              | 0  | b3:
weights digest none                                                   | 3  | none: no such file or directory
weights digest folder                                                 | 10 | folder: no .gguf file
weights digest empty                                                  | 10 | empty: magic
weights digest garbage                                                | 10 | garbage: magic
weights digest                                                        | 2  | PATH

identity                                                              | 2  | ACTION
identity fingerprint small.json                                       | 0  | model artifact
identity fingerprint none                                             | 3  | none: no such file or directory
identity fingerprint folder                                           | 10 | folder: not a regular file
identity fingerprint empty                                            | 10 | empty: identity: not JSON
identity fingerprint garbage                                          | 10 | garbage: identity: not UTF-8
identity explain small.json small.json                                | 0  | same
identity explain small.json wide.json                                 | 10 | kv_dtype
identity explain small.json                                           | 2  | B
identity check-route small.json                                       | 0  | route
identity check-route half.json                                        | 10 | layers 2 to 4
identity check-route small.json --registry --state state              | 10 | unknown
identity check-route small.json --registry --state none               | 3  | none: no ledger here
identity check-route small.json --for-certification                   | 2  | --registry
identity of --reference                                               | 2  | --reference
identity of --gguf none                                               | 3  | none: no such file or directory
identity of --gguf garbage                                            | 10 | garbage: magic
identity of --gguf tiny.gguf --weights folder                         | 2  | --weights does not apply

route                                                                 | 2  | ACTION
route check --vllm http://127.0.0.1:1                                 | 2  | --weights
route check --vllm nowhere --weights folder                           | 2  | 'nowhere' is not a url
route check --vllm http://127.0.0.1:1 --weights none                  | 3  | none: no such file or directory
route check --vllm http://127.0.0.1:1 --weights folder                | 10 | folder: no config.json
route certify --vllm http://127.0.0.1:1 --weights folder --state state | 10 | folder: no config.json
route list --state state                                              | 0  | no recipe
route list --state none                                               | 3  | none: no ledger here

meter                                                                 | 2  | ACTION
meter probe --meter rapl=none                                         | 0  | no-powercap
meter probe --meter rapl=folder                                       | 0  | no-zones
meter probe --meter sun                                               | 2  | --meter sun: expected rapl or nvml
meter watch --pid 1                                                   | 2  | --pid and --cpu-watts go together
meter record --out new-log --meter rapl=none --seconds 1              | 0  | written to new-log
meter record --out good.cbor --meter rapl=none --seconds 1            | 3  | good.cbor: file exists
meter record                                                          | 2  | --out
meter calibrate                                                       | 2  | --out
meter calibrate --out new-fit --points none                           | 3  | none: no such file or directory
meter calibrate --out new-fit --points garbage                        | 3  | not valid utf-8
meter calibrate --out new-fit --points empty                          | 3  | wall meter readings: none
meter calibrate --out good.cbor --points empty                        | 3  | good.cbor: file exists
meter calibrate --out new-fit --points a --readings b                 | 2  | not allowed with
serve --reference --cpu-calibration none                              | 3  | calibration none: cannot be read
serve --reference --cpu-calibration garbage                           | 3  | calibration garbage: not JSON

receipts energy --state state                                         | 0  | absent
receipts energy --state none                                          | 3  | none: no ledger here
receipts energy --state damaged                                       | 10 | damaged/ledger.sqlite
receipts energy --state state --svg good.cbor                         | 3  | good.cbor: file exists
receipts energy --state state --by weather                            | 2  | --by

serve                                                                 | 2  | --gguf FILE, --vllm URL or --reference
serve --reference --meter rapl --cpu-watts 5                          | 2  | both count
serve --reference --gpus 0                                            | 2  | --gpus
serve --config unknown.toml --meter rapl                              | 2  | --meter does not go with it
serve --gguf none --state new-state-1 --port 0                        | 3  | none: no such file or directory
serve --gguf folder --state new-state-2 --port 0                      | 10 | folder: no .gguf file
serve --gguf empty --state new-state-3 --port 0                       | 10 | empty: magic
serve --reference --state garbage --port 0                            | 3  | garbage
serve --reference --state closed --port 0                             | 3  | closed/key
serve --reference --state damaged --port 0                            | 10 | damaged/ledger.sqlite
serve --reference --state new-state-4 --host 0.0.0.0 --port 0         | 2  | '0.0.0.0' is not loopback
serve --reference --state new-state-5 --port 65536                    | 2  | '65536' is not a port, 0 to 65535
serve --gguf garbage --slots 99999999999                              | 2  | 99999999999 is over 2147483647
serve --reference --cpu-watts 99999999                                | 2  | 99999999 watts is over 1000000
serve --reference --name '' --port 0                                  | 2  | --name ''
serve --vllm ftp://x --port 0                                         | 2  | 'ftp://x' is not a url
serve --vllm http://a..b --port 0                                     | 2  | 'http://a..b' is not a url
serve --config keyed.toml --host a..b --port 0                        | 2  | host 'a..b' is no name of a host
serve --config nul.toml                                               | 2  | is no name of a host
serve --reference --threads 2                                         | 2  | --threads
serve --reference --no-flash-attention                                | 2  | --no-flash-attention
serve --config none                                                   | 3  | none: no such file or directory
serve --config folder                                                 | 3  | folder: is a directory
serve --config empty                                                  | 2  | empty: backend: missing
serve --config garbage                                                | 2  | garbage: not valid utf-8
serve --config unknown.toml                                           | 2  | unknown.toml: gateway.prot: unknown key
serve --config unknown.toml --threads 2                               | 2  | --threads does not go with it

launch                                                                | 2  | ACTION
launch validate none                                                  | 2  | recipe 'none'
launch config                                                         | 0  |
launch runs                                                           | 0  |
launch runs none                                                      | 3  | recipe none: never launched from here
launch logs none                                                      | 3  | recipe none: never launched from here
launch bench none                                                     | 3  | recipe none: never launched from here
launch health                                                         | 2  | no cluster in the configuration
launch doctor                                                         | 2  | no cluster in the configuration
launch exec true                                                      | 2  | no cluster in the configuration
launch web                                                            | 2  | no cluster in the configuration
launch report none                                                    | 2  | recipe 'none'
launch report none.manifest.json                                      | 3  | none.manifest.json: no such file

runtime                                                               | 2  | ACTION
runtime validate none                                                 | 3  | none: no such file or directory
runtime validate folder                                               | 3  | runtime.json: no such file or directory
runtime validate garbage                                              | 10 | garbage: not UTF-8
runtime verify garbage                                                | 10 | pack: cut off
runtime unpack garbage                                                | 2  | --out

chat --url http://127.0.0.1:1 --message x                             | 3  | http://127.0.0.1:1: connection refused
chat --url nope --message x                                           | 2  | --url nope
chat --message x --max-tokens none                                    | 2  | 'none' is not a positive whole number
chat --message x --trust none                                         | 3  | none: no such file or directory
chat --message x --disclose garbage                                   | 3  | garbage: file exists

demo --gguf none                                                      | 3  | none: no such file or directory
demo --gguf garbage                                                   | 10 | garbage: magic
demo --gguf folder --reference                                        | 2  | --reference
demo --reference --cpu-watts -1                                       | 2  | --cpu-watts

conformance                                                           | 2  | ACTION
conformance regenerate --check                                        | 0  |
conformance run --only nothing                                        | 3  | no case begins with 'nothing'
conformance run none                                                  | 3  | none: no such client
conformance run --vectors folder true                                 | 3  | no vectors
conformance run --only nothing true                                   | 3  | no case begins with 'nothing'
conformance run --only request/minimal true                           | 10 | request/minimal
"""
