"""A whole candidate: `runtime.json` of schema 6, held to every rule of the reader that packs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from mesh.runtime.artifacts import Artifact, GgufFile, HttpAcquisition, Model, OciAcquisition, Snapshot, repository_of
from mesh.runtime.artifacts import contradictions as of_artifacts
from mesh.runtime.benchmark import Benchmark
from mesh.runtime.distribution import OciContainer
from mesh.runtime.document import digest, parse
from mesh.runtime.engine import Engine
from mesh.runtime.faults import Contradiction, Fault, Table, faults_of, path_of, raise_faults, shown
from mesh.runtime.kinds import Safe, Version, equal
from mesh.runtime.orchestration import Orchestration
from mesh.runtime.target import Target

SCHEMA_VERSION: Final = 6
DOCUMENT: Final = "runtime.json"
_PAYLOAD_SINCE: Final = 8


class Cache(Table):
    provider: str
    persistent: bool
    prewarm: bool
    replay_output_policy: Literal["all-phases-exact", "restored-repeat-exact"] | None
    config: dict[str, Any]

    def contradictions(self) -> Iterator[Fault]:
        if self.persistent and self.replay_output_policy is None:
            expected = "expected all-phases-exact or restored-repeat-exact where persistent is true"
            yield Fault("replay_output_policy", expected)
        if not self.persistent and self.replay_output_policy is not None:
            yield Fault("replay_output_policy", "expected null where persistent is false")


def _without(*names: str) -> AfterValidator:
    def check(value: dict[str, Any]) -> dict[str, Any]:
        if faults := [Fault(name, "unknown field") for name in names if name in value]:
            raise Contradiction(faults)
        return value

    return AfterValidator(check)


def _listed(artifacts: list[Snapshot | GgufFile]) -> list[Snapshot | GgufFile]:
    if faults := list(of_artifacts(artifacts)):
        raise Contradiction(faults)
    return artifacts


class Candidate(Table):
    """The 12 fields, and `orchestration` where several nodes run it as one. What `container` and `serving` hold is for
    whoever launches it to judge (`launching`)."""

    schema_version: Annotated[int, equal(SCHEMA_VERSION)]
    id: str
    version: Version
    logical_model: Safe
    target: Target
    engine: Engine
    model: Model
    artifacts: Annotated[list[Artifact], Field(min_length=1), AfterValidator(_listed)]
    container: Annotated[dict[str, Any], _without("model_cache")]
    cache: Cache
    serving: Annotated[dict[str, Any], _without("qualified", "blocked_by")]
    benchmark: Benchmark
    orchestration: Orchestration | None = None
    nullable = frozenset(("orchestration",))

    def contradictions(self) -> Iterator[Fault]:
        return _between({name: getattr(self, name) for name in type(self).model_fields})

    @classmethod
    def from_json(cls, data: bytes, *, what: str = DOCUMENT) -> Self:
        """Raises CandidateError naming every field at fault by its path."""
        document = parse(data, what)
        raise_faults(faults_in(document), what)
        return cls.model_validate(document)

    @property
    def contract_digests(self) -> dict[str, str]:
        """By which catalogues and benchmarks of this format bind a candidate's parts: 64 hex digits each."""
        told = self.model_dump(exclude_unset=True)
        execution = told.get("orchestration") or {"contract": "letsinfer-single-task-v1"}
        return {
            "target_contract_sha256": digest(told["target"]),
            "benchmark_contract_sha256": digest(told["benchmark"]["contract"]),
            "execution_contract_sha256": digest(execution),
        }

    @property
    def payload_id(self) -> str | None:
        return self.engine.distribution.payload_id

    @property
    def summary(self) -> dict[str, str]:
        """How descriptors and catalogues name it."""
        return {
            "id": self.id, "version": self.version, "logical_model": self.logical_model, "engine": self.engine.id,
            "target": self.target.id,
        }  # fmt: skip


def derived_id(engine: str, uri: str, target: str) -> str:
    """The one id that a candidate of this engine, model and target may have."""
    return "--".join((engine, *repository_of(uri).lower().split("/"), target))


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    kind: Any = field.annotation
    return TypeAdapter(Annotated[kind, *field.metadata] if field.metadata else kind)


_SECTIONS: Final = {name: _adapter(field) for name, field in Candidate.model_fields.items()}


def faults_in(document: Any) -> list[Fault]:
    """Everything that is wrong with a document, in the order in which readers look: whether it is of this schema at
    all, unknown fields, missing ones, each field by itself, fields against each other."""
    if not isinstance(document, dict):
        return [Fault("", f"expected an object, got {shown(document)}")]
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        got = f", got {shown(version)}" if "schema_version" in document else ", and it is missing"
        return [Fault("schema_version", f"expected {SCHEMA_VERSION}{got}")]
    fields = Candidate.model_fields
    faults = [Fault(path_of([name]), "unknown field") for name in document if name not in fields]
    faults += [Fault(name, "missing") for name, field in fields.items() if field.is_required() and name not in document]
    sound: dict[str, Any] = {} if "orchestration" in document else {"orchestration": None}
    for name, adapter in _SECTIONS.items():
        if name in document:
            try:
                sound[name] = _validated(adapter, document[name], fields[name].annotation)
            except ValidationError as e:
                faults += faults_of(e, under=name)
    return [*faults, *_between(sound)]


def _validated(adapter: TypeAdapter[Any], value: Any, annotation: Any) -> Any:
    # an adapter of a model has the model's own configuration, and no other may be given
    strict = None if isinstance(annotation, type) and issubclass(annotation, BaseModel) else True
    return adapter.validate_python(value, strict=strict)


def _between(has: Mapping[str, Any]) -> Iterator[Fault]:
    """The rules between fields of the top level, as far as these are there and sound."""
    target: Target | None = has.get("target")
    engine: Engine | None = has.get("engine")
    model: Model | None = has.get("model")
    artifacts: list[Snapshot | GgufFile] | None = has.get("artifacts")
    if engine and model and target and "id" in has:
        expected = derived_id(engine.id, model.uri, target.id)
        if has["id"] != expected:
            yield Fault("id", f"expected {expected!r}, got {shown(has['id'])}")
    if engine and target:
        yield from _of_platform(engine, target)
    if engine and model:
        yield from _of_acquisition(engine, model)
    if artifacts:
        yield from _of_primary(artifacts, engine, model)
    if engine and artifacts:
        names = {artifact.name for artifact in artifacts}
        for at, name in engine.mentions:
            if name not in names:
                yield Fault(f"engine.arguments[{at}]", f"no artifact is named {name!r}")
    cache: Cache | None = has.get("cache")
    if engine and cache and cache.provider != engine.cache_provider:
        expected = f"expected engine.cache_provider, {engine.cache_provider!r}"
        yield Fault("cache.provider", f"{expected}, got {shown(cache.provider)}")
    benchmark: Benchmark | None = has.get("benchmark")
    if benchmark:
        yield from _of_tokenizer(benchmark, engine, artifacts)
    if target and "orchestration" in has:
        yield from _of_nodes(target, has["orchestration"])


def _of_platform(engine: Engine, target: Target) -> Iterator[Fault]:
    distribution = engine.distribution
    if not isinstance(distribution, OciContainer) and distribution.platform != target.platform:
        expected = f"expected target.platform, {target.platform!r}"
        yield Fault("engine.distribution.platform", f"{expected}, got {shown(distribution.platform)}")


def _of_acquisition(engine: Engine, model: Model) -> Iterator[Fault]:
    container = isinstance(engine.distribution, OciContainer)
    if container and isinstance(model.acquisition, HttpAcquisition):
        yield Fault("model.acquisition.kind", "expected oci-container, as engine.distribution.kind is")
    elif not container and isinstance(model.acquisition, OciAcquisition):
        yield Fault("model.acquisition.kind", "expected huggingface-http, as engine.distribution is native")


def _of_primary(artifacts: list[Snapshot | GgufFile], engine: Engine | None, model: Model | None) -> Iterator[Fault]:
    first = artifacts[0]
    if model:
        if model.artifact != first.name:
            expected = f"expected the name of the first artifact, {first.name!r}"
            yield Fault("model.artifact", f"{expected}, got {shown(model.artifact)}")
        if model.uri != first.uri:
            yield Fault("artifacts[0].uri", f"expected model.uri, {shown(model.uri)}, got {shown(first.uri)}")
    if engine and first.format != engine.model_format:
        expected = f"expected engine.model_format, {engine.model_format!r}"
        yield Fault("artifacts[0].format", f"{expected}, got {first.format!r}")


def _of_tokenizer(
    benchmark: Benchmark, engine: Engine | None, artifacts: list[Snapshot | GgufFile] | None
) -> Iterator[Fault]:
    contract, path = benchmark.contract, "benchmark.contract.tokenizer"
    if artifacts and contract.tokenizer.model_sha256 != (pin := model_pin(artifacts[0])):
        yield Fault(f"{path}.model_sha256", f"expected {pin}, which the first artifact has")
    if engine is None:
        return
    if contract.schema_version >= _PAYLOAD_SINCE:
        bound, name, of = engine.distribution.payload_id, "engine_payload_sha256", "payload_id"
    else:
        container = isinstance(engine.distribution, OciContainer)
        bound, name, of = (
            engine.distribution.bound,
            "engine_image_sha256",
            "immutable_id" if container else "payload_id",
        )
    given = getattr(contract.tokenizer, name)
    if bound is None:
        yield Fault(f"engine.distribution.{of}", f"missing: {path}.{name} is of it")
    elif given is not None and f"sha256:{given}" != bound:
        yield Fault(f"{path}.{name}", f"expected that of engine.distribution.{of}, {bound.removeprefix('sha256:')}")


def model_pin(artifact: Snapshot | GgufFile) -> str:
    """What a contract names a model by: 64 hex digits."""
    if isinstance(artifact, GgufFile):
        return artifact.sha256
    return digest({"repository": repository_of(artifact.uri), "revision": artifact.revision})


def _of_nodes(target: Target, orchestration: Orchestration | None) -> Iterator[Fault]:
    if not target.parallel:
        if orchestration is not None:
            yield Fault("orchestration", "expected to be absent where target.placement.strategy is single")
    elif orchestration is None:
        yield Fault("orchestration", "missing where target.placement.strategy is parallel")
    elif len(orchestration.tasks) != target.placement.node_count:
        expected = f"expected one for each node, {target.placement.node_count}"
        yield Fault("orchestration.tasks", f"{expected}, got {len(orchestration.tasks)}")
