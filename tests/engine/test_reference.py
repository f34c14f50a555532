import asyncio

import pytest

from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Served, ServingEngine, TextEngine
from mesh.engine.reference import VOCABULARY, ReferenceEngine, stream
from mesh.errors import BadRequest, EngineFailed, EngineUnavailable
from mesh.schema.disclosure import settings_digest
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity
from mesh.schema.receipt import EngineBlock
from mesh.schema.request import Sampling, ServeRequest

# The first values of SplitMix64 as its users publish them, by seed.
SPLITMIX64 = {
    0: (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC),
    1234567: (
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ),
}


class Sink:
    """Keeps what is put; after `stop_after` ids it wants no more."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.cancelled = CallOff()
        self.tokens: list[int] = []
        self.stop_after = stop_after
        if stop_after == 0:
            self.cancelled.set()

    def put(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) == self.stop_after:
            self.cancelled.set()


def request(max_tokens: int, *, tag: int = 7, seed: int | None = None, **changes: object) -> ServeRequest:
    """`seed` makes the prompt hash that starts the stream at exactly that state."""
    if seed is None:
        prompt_hash = bytes(ContentId.of_bytes(bytes([tag] * 8 + [max_tokens % 256])))
    else:
        prompt_hash = (seed ^ (max_tokens << 1)).to_bytes(8, "little") + bytes(24)
    sampling = Sampling.from_map(Sampling.greedy().to_map() | changes.pop("sampling", {}))  # type: ignore[operator]
    return ServeRequest.of(
        prompt_hash=prompt_hash, prompt_tokens=8, max_tokens=max_tokens, fidelity_floor=0, sampling=sampling, **changes
    )


def serve(engine: ReferenceEngine, req: ServeRequest, sink: Sink | None = None) -> Served:
    return asyncio.run(_serve(engine, req, sink))


async def _serve(engine: ReferenceEngine, req: ServeRequest, sink: Sink | None) -> Served:
    sink = sink or Sink()
    served = await engine.serve(req, [1] * 8, sink)
    assert tuple(sink.tokens) == served.tokens
    return served


@pytest.mark.parametrize("seed", SPLITMIX64)
def test_reference_tokens_are_published_splitmix64_values_modulo_vocabulary(seed):
    values = SPLITMIX64[seed]
    served = serve(ReferenceEngine(), request(len(values), seed=seed))
    assert served.tokens == tuple(value % 32000 for value in values)


def test_reference_tokens_depend_on_max_tokens_beyond_their_number():
    # Seed 0x0102030405060708 from the hash; XOR with 2 << 1 and 3 << 1 start two different streams.
    prompt_hash = bytes([8, 7, 6, 5, 4, 3, 2, 1]) + b"\xff" * 24
    assert next(stream(prompt_hash, 2)) != next(stream(prompt_hash, 3))
    assert next(stream(prompt_hash, 2)) == next(stream((0x0102030405060708 ^ 4).to_bytes(8, "little"), 0))


def test_reference_output_is_the_same_on_another_engine():
    a = serve(ReferenceEngine("tiny", fidelity=Fidelity.F1, work_per_token=64), request(16))
    b = serve(ReferenceEngine("other", work_per_token=0), request(16))
    assert a.tokens == b.tokens
    assert (a.outcome.tokens_in, a.outcome.tokens_out, a.outcome.tokens_accepted) == (8, 16, 16)
    assert (a.outcome.finish, a.outcome.counted_by) == ("length", "engine")
    assert all(0 <= token < VOCABULARY for token in a.tokens)


def test_reference_repeat_is_a_cache_hit_that_changes_no_token():
    engine = ReferenceEngine()
    first, second = serve(engine, request(8, tag=3)), serve(engine, request(8, tag=3))
    assert (first.outcome.cache_hit_tokens, second.outcome.cache_hit_tokens) == (0, 8)
    assert first.tokens == second.tokens
    assert serve(engine, request(8, tag=4)).outcome.cache_hit_tokens == 0


def test_reference_speculation_records_the_accept_ratio():
    served = serve(ReferenceEngine(spec_accept_permille=750), request(100, tag=5))
    assert (served.outcome.spec_proposed, served.outcome.spec_accepted) == (100, 75)
    plain = serve(ReferenceEngine(), request(100, tag=5))
    assert (plain.outcome.spec_proposed, plain.outcome.spec_accepted) == (0, 0)
    assert plain.tokens == served.tokens


def test_reference_speculation_is_capped_at_all_accepted():
    assert serve(ReferenceEngine(spec_accept_permille=4000), request(10)).outcome.spec_accepted == 10


def test_reference_reports_delivery_and_identity_only_where_asked():
    plain = serve(ReferenceEngine(fidelity=Fidelity.F2), request(2)).outcome
    assert (plain.delivered_fidelity, plain.weights_digest, plain.precision) == (None, None, None)
    digest = ContentId.of_bytes(b"weights")
    engine = ReferenceEngine(fidelity=Fidelity.F2, report_delivered=True, weights_digest=digest, precision="f16")
    told = serve(engine, request(2)).outcome
    assert (told.delivered_fidelity, told.weights_digest, told.precision) == (2, digest, "f16")
    assert (engine.weights_digest, engine.precision) == (digest, "f16")


@pytest.mark.parametrize("after", [0, 1, 5])
def test_reference_cancel_takes_effect_before_another_token(after):
    whole = serve(ReferenceEngine(), request(1000)).tokens
    engine = ReferenceEngine(spec_accept_permille=500)
    served = serve(engine, request(1000), Sink(after))
    assert served.tokens == whole[:after]
    assert (served.outcome.finish, served.outcome.tokens_out) == ("cancelled", after)
    assert served.outcome.spec_accepted == after // 2


def test_reference_cancel_at_the_last_token_is_no_cancel():
    assert serve(ReferenceEngine(), request(4), Sink(4)).outcome.finish == "length"


def test_reference_cancel_from_another_task_lands_between_tokens():
    async def run() -> Served:
        sink = Sink()
        serving = asyncio.create_task(ReferenceEngine(work_per_token=10_000).serve(request(100_000), [1] * 8, sink))
        while len(sink.tokens) < 3:
            await asyncio.sleep(0)
        sink.cancelled.set()
        return await serving

    served = asyncio.run(run())
    assert served.outcome.finish == "cancelled"
    assert 3 <= len(served.tokens) <= 4


def test_reference_serves_run_side_by_side():
    async def run() -> list[Served]:
        engine = ReferenceEngine()
        return await asyncio.gather(*(_serve(engine, request(50, tag=tag), None) for tag in range(8)))

    assert [s.tokens for s in asyncio.run(run())] == [
        serve(ReferenceEngine(), request(50, tag=tag)).tokens for tag in range(8)
    ]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("stop", {"sampling": {"stop": ["x"]}}),
        ("stop_ids", {"sampling": {"stop_ids": [2]}}),
        ("logit_bias", {"sampling": {"logit_bias": [[1, 1]]}}),
        ("frequency_penalty", {"sampling": {"frequency_penalty_u": -1}}),
        ("presence_penalty", {"sampling": {"presence_penalty_u": 1}}),
        ("repetition_penalty", {"sampling": {"repetition_penalty_u": 1_100_000}}),
        ("grammar", {"sampling": {"grammar": bytes(32)}}),
        ("decision", {"decision": bytes(32)}),
    ],
)
def test_reference_refuses_what_its_tokens_cannot_follow(field, changes):
    engine, req = ReferenceEngine(), request(4, **changes)
    refusal = engine.refusal(req)
    assert refusal is not None
    assert refusal.startswith(f"{field}:")
    with pytest.raises(EngineFailed, match=field):
        serve(engine, req)


def test_reference_accepts_sampling_that_has_nothing_to_choose_from():
    sampling = {"temperature_u": 700_000, "seed": 9, "top_p_u": 1, "top_k": 5, "min_p_u": 1, "ignore_eos": True}
    engine, req = ReferenceEngine(), request(4, sampling=sampling)
    assert engine.refusal(req) is None
    assert engine.deterministic(req)
    assert serve(engine, req).tokens == serve(engine, request(4)).tokens


def test_reference_refuses_more_than_its_context():
    with pytest.raises(EngineFailed, match="13 tokens, the context holds 12"):
        serve(ReferenceEngine(context_tokens=12), request(5))


def test_reference_engine_serves_no_more_after_close():
    async def run() -> None:
        engine = ReferenceEngine()
        await engine.ready()
        await engine.close()
        await engine.ready()

    with pytest.raises(EngineUnavailable, match="closed"):
        asyncio.run(run())


def test_reference_engine_states_what_a_receipt_can_hold():
    engine: ServingEngine = ReferenceEngine(random=lambda n: b"\x05" * n)
    block = EngineBlock.of(
        backend_id=engine.backend_id,
        recipe_id=engine.recipe_id,
        fidelity=int(engine.fidelity),
        deterministic=True,
        settings_digest=settings_digest(dict(engine.settings)),
        process=engine.process,
    )
    assert block.process == b"\x05" * 16
    assert block.backend_id.startswith("reference/")
    assert ReferenceEngine().process != ReferenceEngine().process


def test_reference_settings_tell_engines_with_other_counts_apart():
    def digest(permille: int) -> ContentId:
        return settings_digest(dict(ReferenceEngine(spec_accept_permille=permille).settings))

    assert digest(0) != digest(1)


def test_reference_text_side_renders_encodes_and_spells():
    engine = ReferenceEngine()
    assert isinstance(engine, TextEngine)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "é?"}]
    text = asyncio.run(engine.render(messages))
    assert text == "system: be brief\nuser: é?\nassistant:"
    assert asyncio.run(engine.encode("é", special=True)) == [0xC3, 0xA9]
    assert asyncio.run(engine.encode("é", special=False)) == [0xC3, 0xA9]
    assert engine.piece(0) == b" w00000"
    assert engine.piece(VOCABULARY - 1) == b" w31999"
    assert len({engine.piece(token) for token in range(VOCABULARY)}) == VOCABULARY


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_reference_piece_of_an_unknown_id_is_refused(token):
    with pytest.raises(BadRequest, match=str(token)):
        ReferenceEngine().piece(token)


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": [{"type": "image_url"}]}])
def test_reference_render_refuses_content_that_is_not_text(message):
    with pytest.raises(BadRequest) as caught:
        asyncio.run(ReferenceEngine().render([message]))
    assert caught.value.code == "template_error"
