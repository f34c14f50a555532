/**
 * What can go wrong, as one tree. "Wrong" and "cannot be decided" are different branches.
 *
 *     MeshError
 *     ├── WrongError               the bytes break a rule
 *     │   ├── EncodingError        encoding
 *     │   ├── SchemaError          schema
 *     │   ├── StructureError       structure
 *     │   ├── CanonicalError       canonical
 *     │   ├── HeaderError          header
 *     │   ├── SignatureError       signature
 *     │   ├── PayloadError         payload
 *     │   ├── SequenceError        sequence
 *     │   ├── MovingReference      moving-reference
 *     │   ├── LayerError           layers
 *     │   ├── FingerprintError     fingerprint
 *     │   ├── TrustFileError       trust-file
 *     │   └── BlueprintError
 *     │       ├── ContainerError   container
 *     │       ├── BodyHashError    body-hash
 *     │       ├── SignerError      signer
 *     │       ├── ChainError       chain
 *     │       ├── ExpiredError     expired
 *     │       ├── RevokedError     revoked
 *     │       ├── KernelError      kernel
 *     │       ├── PostcardError    postcard
 *     │       ├── BodyError        body
 *     │       └── LineageError     lineage
 *     ├── TrustError               trust: the steward is unknown, or was not trusted at that time
 *     ├── UntrustedRoot            untrusted-root: a blueprint's certificates lead to a root that is not known here
 *     ├── StaleRevocations         stale-revocations: nobody knows here what was revoked by now
 *     ├── RevocationsError         no class: a list of revoked blocks that cannot be read, so that no grant is let through
 *     └── UncheckableError         no class: this platform lacks what the check needs
 */

export class MeshError extends Error {
  /** @type {string} the class of SPEC.md's registry; empty where the fault is not the input's */
  errorClass = "";

  /** @param {string} message object, fault, expected against got; lower case */
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

export class WrongError extends MeshError {}

export class EncodingError extends WrongError {
  errorClass = "encoding";
}

export class SchemaError extends WrongError {
  errorClass = "schema";
}

export class StructureError extends WrongError {
  errorClass = "structure";
}

export class CanonicalError extends WrongError {
  errorClass = "canonical";
}

export class HeaderError extends WrongError {
  errorClass = "header";
}

export class SignatureError extends WrongError {
  errorClass = "signature";
}

export class PayloadError extends WrongError {
  errorClass = "payload";
}

export class SequenceError extends WrongError {
  errorClass = "sequence";
}

export class MovingReference extends WrongError {
  errorClass = "moving-reference";
}

export class LayerError extends WrongError {
  errorClass = "layers";
}

export class FingerprintError extends WrongError {
  errorClass = "fingerprint";
}

export class TrustFileError extends WrongError {
  errorClass = "trust-file";
}

export class BlueprintError extends WrongError {}

export class ContainerError extends BlueprintError {
  errorClass = "container";
}

export class BodyHashError extends BlueprintError {
  errorClass = "body-hash";
}

export class SignerError extends BlueprintError {
  errorClass = "signer";
}

export class ChainError extends BlueprintError {
  errorClass = "chain";
}

export class ExpiredError extends BlueprintError {
  errorClass = "expired";
}

export class RevokedError extends BlueprintError {
  errorClass = "revoked";
}

export class KernelError extends BlueprintError {
  errorClass = "kernel";
}

export class PostcardError extends BlueprintError {
  errorClass = "postcard";
}

export class BodyError extends BlueprintError {
  errorClass = "body";
}

export class LineageError extends BlueprintError {
  errorClass = "lineage";
}

export class TrustError extends MeshError {
  errorClass = "trust";
}

export class UntrustedRoot extends MeshError {
  errorClass = "untrusted-root";
}

export class StaleRevocations extends MeshError {
  errorClass = "stale-revocations";
}

export class RevocationsError extends MeshError {}

export class UncheckableError extends MeshError {}
