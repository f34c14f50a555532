"""The one error root and its tree.

    MeshError
    ├── Invalid                    the thing is wrong, whoever looks at it
    │   ├── EncodingError          bytes are not the one canonical CBOR encoding of a value
    │   ├── SchemaError            a field is missing, unknown, of the wrong type or out of range
    │   ├── EnvelopeError          a signed envelope is wrong; one class per step of the check
    │   │   ├── StructureError     not a tagged COSE_Sign1 of four elements
    │   │   ├── CanonicalError     the right values in other bytes
    │   │   ├── HeaderError        a header says something that this format does not allow
    │   │   ├── SignatureError     the signature does not hold, or the key cannot sign anything
    │   │   └── PayloadError       well signed, but not the object that the header names
    │   ├── SequenceError          receipts that should follow one another do not
    │   ├── IdentityError          an identity contradicts itself
    │   │   ├── MovingReference    a revision that can name something else tomorrow
    │   │   ├── LayerError         layers that are not where they are said to be
    │   │   └── FingerprintError   a declared fingerprint that does not follow from the identity
    │   ├── CandidateError         a runtime candidate, or what is published beside it, breaks a rule; each by its field
    │   │   └── PackError          files that cannot be packed, or a pack that contradicts itself
    │   ├── ModelFileError         a model file is malformed, truncated or of an unsupported kind
    │   └── BlueprintError         a blueprint may not be used; one class per step of the check
    │       ├── ContainerError     not such a file, or its sections are not where they are said to be
    │       ├── BodyHashError      the body is not the one that the header names
    │       ├── ChainError         its certificates do not lead to a root
    │       ├── ExpiredError       a certificate is not valid now
    │       ├── RevokedError       a certificate, key, kernel or the blueprint itself was revoked
    │       ├── SignerError        one of both signatures does not hold, or there is none
    │       ├── KernelError        a kernel is not the one that is pinned, or not for this machine
    │       ├── PostcardError      bytes are not the one postcard encoding of a value
    │       ├── BodyError          a body that contradicts itself, or this machine or checkpoint
    │       └── LineageError       a lower revision of its lineage than was served before
    ├── Undecidable                could not be checked with what is at hand
    │   ├── UntrustedSteward       nobody vouched for the key, or not for that time
    │   ├── UntrustedRoot          a blueprint's certificates lead to a root that is not trusted
    │   └── StaleRevocations       what was revoked is not known for this time
    ├── Refused                    a request was turned down before any work
    │   ├── BadRequest             the request is wrong
    │   │   └── ContextLengthExceeded
    │   ├── Unauthorized           no credential, or one that nobody knows
    │   ├── Forbidden              the credential does not reach this far
    │   │   └── GrantRefused       it is a grant, and one of its caveats does not hold
    │   ├── NotFound               no such model, receipt, serve or settings document
    │   ├── Conflict               the idempotency key is in use
    │   ├── RouteIncompatible      parts that cannot compute one model together; each one's reasons are listed
    │   ├── RecipeNotCertified     nothing has shown that it gives right answers
    │   ├── NoCandidate            no backend may serve this; each one's reason is listed
    │   └── Overloaded             try again later
    ├── DeadlineExceeded           the time that a request had was over before its answer was whole
    ├── EngineError                an engine failed
    │   ├── EngineUnavailable      it cannot take a serve now
    │   │   ├── WeightsChanged     the model files are no longer the ones that were digested
    │   │   └── IdentityChanged    it is no longer what it was when it was measured; the axis is named
    │   ├── EngineFailed           it died or broke its protocol in mid-serve
    │   ├── EngineUnidentified     not all that moves its numbers is known; the axis is named
    │   └── EngineUnsupported      this machine or library cannot run it
    ├── MeterError                 a meter cannot be read
    ├── LedgerError                the ledger cannot be used
    │   ├── LedgerLocked           another process owns it
    │   ├── LedgerVersion          it was written by a newer format
    │   ├── LedgerCorrupt          it is no ledger, damaged, or contradicts itself or its last checkpoint
    │   └── LedgerUnwritable       the disk is full or read-only; nothing may be served
    ├── LaunchError                an engine could not be launched or stopped as asked
    │   ├── HostKeyError           a node shows another key than the pinned one, or none is pinned
    │   ├── NodeUnreachable        nothing can be said of a node: it could not be asked
    │   ├── NodeFailed             a command on a node failed; each node's reason is listed
    │   └── RanksDiffer            parts of one launch that differ in image, weights, argv or environment
    ├── KeyFileError               the signing key is missing, malformed or readable by others
    └── UsageError                 a command line or configuration that cannot be followed
        ├── TrustFileError         what names the trusted keys is malformed, or a key in it can bind nobody
        └── UnstatedLever          a flag, variable or key that a blueprint does not state; it is named

"Wrong" and "could not be checked" are different branches on purpose: an auditor acts on the first and asks for more
on the second. Each class has a stable `code` that commands, HTTP answers and vectors use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class MeshError(Exception):
    """Root of every error this package raises on purpose. The message names the object, the fault, and expected
    against got, in lower case."""

    code = "mesh"


class Invalid(MeshError):
    code = "invalid"


class EncodingError(Invalid):
    code = "encoding"


class SchemaError(Invalid):
    code = "schema"


class EnvelopeError(Invalid):
    code = "envelope"


class StructureError(EnvelopeError):
    code = "structure"


class CanonicalError(EnvelopeError):
    code = "canonical"


class HeaderError(EnvelopeError):
    code = "header"


class SignatureError(EnvelopeError):
    code = "signature"


class PayloadError(EnvelopeError):
    code = "payload"


class SequenceError(Invalid):
    code = "sequence"


class IdentityError(Invalid):
    code = "identity"


class MovingReference(IdentityError):
    code = "moving-reference"


class LayerError(IdentityError):
    code = "layers"


class FingerprintError(IdentityError):
    code = "fingerprint"


class CandidateError(Invalid):
    """`faults` says for a program what the message says for people: each with `path`, the field's, and `fault`."""

    code = "candidate"

    def __init__(self, message: str, *, faults: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.faults = [dict(fault) for fault in faults]


class PackError(CandidateError):
    code = "pack"


class ModelFileError(Invalid):
    """`field` names the header field or tensor, `offset` the byte where it starts, where they are known."""

    code = "model-file"

    def __init__(self, message: str, *, field: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.offset = offset


class BlueprintError(Invalid):
    code = "blueprint"


class ContainerError(BlueprintError):
    code = "container"


class BodyHashError(BlueprintError):
    code = "body-hash"


class ChainError(BlueprintError):
    code = "chain"


class ExpiredError(BlueprintError):
    code = "expired"


class RevokedError(BlueprintError):
    code = "revoked"


class SignerError(BlueprintError):
    code = "signer"


class KernelError(BlueprintError):
    code = "kernel"


class PostcardError(BlueprintError):
    code = "postcard"


class BodyError(BlueprintError):
    code = "body"


class LineageError(BlueprintError):
    code = "lineage"


class Undecidable(MeshError):
    code = "undecidable"


class UntrustedSteward(Undecidable):
    code = "trust"


class UntrustedRoot(Undecidable):
    code = "untrusted-root"


class StaleRevocations(Undecidable):
    code = "stale-revocations"


class Refused(MeshError):
    """`param` is the request field at fault, where there is one."""

    code = "refused"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class BadRequest(Refused):
    code = "bad_request"


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"


class Unauthorized(Refused):
    code = "unauthorized"


class Forbidden(Refused):
    code = "forbidden"


class GrantRefused(Forbidden):
    """`grant` says for a program what the message says for people: the block, the caveat, what it states and what was
    offered."""

    code = "grant_refused"

    def __init__(self, message: str, *, grant: Mapping[str, Any], code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.grant = dict(grant)


class NotFound(Refused):
    code = "not_found"


class Conflict(Refused):
    """An idempotency key met again: `code` tells a serve in flight from another body under the same key."""

    code = "conflict"


class RouteIncompatible(Refused):
    """`reasons` says for a program what the message says for people: each with `reason`, `field`, `detail` and
    `shard_index`."""

    code = "route_incompatible"

    def __init__(self, message: str, *, reasons: Sequence[Mapping[str, Any]], code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reasons = [dict(reason) for reason in reasons]


class RecipeNotCertified(Refused):
    code = "recipe_not_certified"


class NoCandidate(Refused):
    """`reasons` maps each backend's name to why it may not serve the request."""

    code = "no_candidate"

    def __init__(self, message: str, *, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class Overloaded(Refused):
    """`retry_after_s` is the whole number of seconds after which a retry makes sense."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(MeshError):
    code = "deadline_exceeded"


class EngineError(MeshError):
    code = "engine"


class EngineUnavailable(EngineError):
    """`retry_after_s` is the whole number of seconds after which a retry makes sense, None where nobody knows."""

    code = "engine-unavailable"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WeightsChanged(EngineUnavailable):
    code = "weights-changed"


class IdentityChanged(EngineUnavailable):
    code = "identity-changed"


class EngineFailed(EngineError):
    code = "engine-failed"


class EngineUnidentified(EngineError):
    code = "engine-unidentified"


class EngineUnsupported(EngineError):
    code = "engine-unsupported"


class MeterError(MeshError):
    code = "meter"


class LedgerError(MeshError):
    code = "ledger"


class LedgerLocked(LedgerError):
    code = "ledger-locked"


class LedgerVersion(LedgerError):
    code = "ledger-version"


class LedgerCorrupt(LedgerError):
    code = "ledger-corrupt"


class LedgerUnwritable(LedgerError):
    code = "ledger-unwritable"


class LaunchError(MeshError):
    code = "launch"


class HostKeyError(LaunchError):
    code = "host-key"


class NodeUnreachable(LaunchError):
    code = "node-unreachable"


class NodeFailed(LaunchError):
    """`nodes` maps each node that failed to why."""

    code = "node-failed"

    def __init__(self, message: str, *, nodes: Mapping[str, str]) -> None:
        super().__init__(message)
        self.nodes = dict(nodes)


class RanksDiffer(LaunchError):
    code = "ranks-differ"


class KeyFileError(MeshError):
    code = "key-file"


class UsageError(MeshError):
    code = "usage"


class TrustFileError(UsageError):
    code = "trust-file"


class UnstatedLever(UsageError):
    code = "unstated-lever"
