"""From what an operator asks for to the meters of a gateway, and what he is told."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pynvml
import pytest

from mesh.cli.meter_flags import add_gpus_flag, add_meter_flags, configured, flagged, with_gpus
from mesh.cli.meters import Running, open_meters, wanted_cards
from mesh.cli.serve_plan import backend_spec
from mesh.cli.specs import EngineSpec, GgufSpec, MeterSpec, ReferenceSpec, VllmSpec
from mesh.engine.reference import ReferenceEngine
from mesh.errors import UsageError
from mesh.gateway.config import MeshConfig
from mesh.meter.nvml import Wanted
from mesh.meter.powercap import POWERCAP
from mesh.meter.visible import Card
from tests.meter.powercap_tree import laptop
from tests.support.nvml import StubHost, stub_host

A, B, C = (Card(index, f"GPU-{name}", "H100") for index, name in enumerate(("aa", "bb", "cc")))
URL = "http://127.0.0.1:8000"


def running(**specs: EngineSpec) -> list[Running]:
    """Engines by name; what they do is of no account here."""
    return [(spec, ReferenceEngine(name)) for name, spec in specs.items()]


def parsed(*argv: str, cpu_watts_u: int | None = None) -> MeterSpec:
    parser = argparse.ArgumentParser()
    add_meter_flags(parser)
    return flagged(parser.parse_args(argv), cpu_watts_u=cpu_watts_u)


def written(text: str) -> MeterSpec:
    config = MeshConfig.from_toml(f'[meter]\n{text}\n[[backend]]\nkind = "reference"\n')
    return configured(config.meter, Path("/etc/mesh"))


@pytest.mark.parametrize(
    ("flags", "text", "spec"),
    [
        ((), "", MeterSpec()),
        (("--meter", "rapl"), "rapl = true", MeterSpec(rapl=POWERCAP)),
        (("--meter", "rapl=/tree"), 'rapl = "/tree"', MeterSpec(rapl=Path("/tree"))),
        (
            ("--meter", "rapl", "--rapl-boundary", "psys"),
            'rapl = true\nrapl_boundary = "psys"',
            MeterSpec(rapl=POWERCAP, rapl_boundary="psys"),
        ),
        (("--meter", "nvml"), 'nvml = "all"', MeterSpec(nvml="all")),
        (("--meter", "nvml=0,GPU-bb"), 'nvml = [0, "GPU-bb"]', MeterSpec(nvml=(0, "GPU-bb"))),
        (("--meter", "rapl", "--meter", "nvml"), 'rapl = true\nnvml = "all"', MeterSpec(rapl=POWERCAP, nvml="all")),
    ],
)
def test_flags_and_configuration_say_the_same(flags: tuple[str, ...], text: str, spec: MeterSpec) -> None:
    assert parsed(*flags) == written(text) == spec


def test_paths_in_a_configuration_are_relative_to_it() -> None:
    assert written('rapl = "tree"').rapl == Path("/etc/mesh/tree")
    assert written("rapl = false") == MeterSpec()


@pytest.mark.parametrize(
    "flags",
    [
        ("--meter", "sun"),
        ("--meter", "rapl="),
        ("--meter", "rapl", "--meter", "rapl=/x"),
        ("--meter", "nvml", "--meter", "nvml=0"),
        ("--meter", "nvml=0,,1"),
        ("--meter", "nvml=0,GPU-bb,0"),
        ("--rapl-boundary", "package"),
    ],
)
def test_flags_that_say_nothing_or_two_things_are_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parsed(*flags)


def test_card_that_a_configuration_names_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="nvml names a card twice"):
        written('nvml = ["GPU-bb", 0, "GPU-bb"]')


@pytest.mark.parametrize("text", ["nvml = []", "nvml = [-1]", "nvml = true", 'nvml = "some"', 'rapl = ""'])
def test_configuration_that_names_no_meter_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"meter\.(nvml|rapl)"):
        written(text)


def test_two_meters_of_the_same_energy_are_refused() -> None:  # EN-04
    with pytest.raises(UsageError, match="both count"):
        parsed("--meter", "rapl", cpu_watts_u=10**6)
    with pytest.raises(UsageError, match="both count"):
        written("rapl = true\ncpu_watts = 5")


def test_cards_of_an_engine_are_named_by_flag() -> None:
    parser = argparse.ArgumentParser()
    add_gpus_flag(parser)
    for text, cards in (("0,GPU-bb", (0, "GPU-bb")), ("none", ()), ("2", (2,))):
        spec = with_gpus(VllmSpec(URL), parser.parse_args(["--gpus", text]).gpus)
        assert isinstance(spec, VllmSpec)
        assert spec.gpus == cards
    with pytest.raises(UsageError, match="computes on the processor"):
        with_gpus(ReferenceSpec(), (0,))


def test_cards_of_a_backend_are_in_the_configuration() -> None:
    config = MeshConfig.from_toml(
        f'[[backend]]\nkind = "vllm"\nurl = "{URL}"\nname = "a"\ngpus = [0, "GPU-bb"]\n'
        f'[[backend]]\nkind = "vllm"\nurl = "{URL}"\nname = "b"\n'
        '[[backend]]\nkind = "vllm-managed"\nweights = "m"\nname = "c"\ngpus = []\n'
    )
    specs = [backend_spec(backend, Path("/etc/mesh")) for backend in config.backend]
    assert all(isinstance(spec, VllmSpec) for spec in specs)
    assert [spec.gpus for spec in specs] == [(0, "GPU-bb"), None, ()]  # type: ignore[union-attr]


def wanted(
    engines: Sequence[Running], *, asked: str | tuple[int | str, ...] = "all", **environment: str
) -> tuple[list[Wanted], list[str]]:
    notes: list[str] = []
    return wanted_cards(asked, engines, environment, [A, B, C], None, notes), notes


def test_cards_are_those_that_engines_compute_on() -> None:
    engines = running(one=VllmSpec(URL, gpus=(2,)), two=VllmSpec(URL, gpus=("GPU-cc", 0)), cpu=GgufSpec(Path("m")))
    found, notes = wanted(engines)
    assert found == [Wanted("2", C, frozenset({"one", "two"})), Wanted("0", A, frozenset({"two"}))]
    assert len(notes) == 1
    assert "card 1 (GPU-bb) is not metered" in notes[0]


@pytest.mark.parametrize(
    ("visible", "cards"), [("2", [C]), ("GPU-cc", [C]), ("1,2", [B, C]), ("", []), ("-1", []), ("2,junk,1", [C])]
)
def test_server_of_our_own_computes_on_the_cards_that_it_inherits(visible: str, cards: list[Card]) -> None:  # EN-07
    found, _ = wanted(running(m=VllmSpec(None, weights=Path("m"))), CUDA_VISIBLE_DEVICES=visible)
    assert [one.card for one in found] == cards


def test_server_of_our_own_on_the_processor_computes_on_no_card() -> None:
    assert wanted(running(m=VllmSpec(None, weights=Path("m"), device="cpu")))[0] == []


def test_numbers_that_may_be_other_cards_are_a_reason() -> None:
    cards = [A, Card(1, "GPU-t4", "T4")]
    found = wanted_cards("all", running(m=VllmSpec(None)), {"CUDA_VISIBLE_DEVICES": "1"}, cards, None, [])
    assert found == [Wanted("all", None, frozenset({"m"}), "devices-unknown")]


def test_server_of_others_is_not_guessed_to_be_here() -> None:  # EN-07
    found, notes = wanted(running(m=VllmSpec(URL)), CUDA_VISIBLE_DEVICES="0")
    assert found == []
    assert len(notes) == 3
    assert all("no engine is known to compute on it" in note for note in notes)


def test_card_that_is_used_and_not_asked_for_is_told() -> None:
    found, notes = wanted(running(m=VllmSpec(URL, gpus=(0, 1))), asked=(0,))
    assert [one.card for one in found] == [A]
    assert notes == ["meter nvml: m also computes on card 1, which is not metered"]


def test_card_that_is_not_there_is_a_reason_in_receipts() -> None:
    found, _ = wanted(running(m=VllmSpec(URL, gpus=(7,))), asked=(7,))
    assert found == [Wanted("7", None, frozenset({"m"}), "no-such-card")]


def test_missing_driver_is_a_reason_for_every_engine_that_needs_it() -> None:
    engines = running(one=VllmSpec(URL, gpus=(0,)), two=VllmSpec(None), cpu=ReferenceSpec())
    found = wanted_cards("all", engines, {}, [], "nvml-library-not-found", [])
    assert found == [
        Wanted("0", None, frozenset({"one"}), "nvml-library-not-found"),
        Wanted("all", None, frozenset({"two"}), "nvml-library-not-found"),
    ]


@pytest.fixture
def nvml() -> Iterator[StubHost]:
    host = stub_host()
    host.clear()
    yield host
    host.clear(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_meters_are_opened_for_the_engines_that_they_cover(tmp_path: Path, nvml: StubHost) -> None:
    laptop(tmp_path)
    nvml.add("GPU-aa", energy_mj=5, step_mj=1)
    engines = running(cpu=GgufSpec(Path("m")), gpu=VllmSpec(URL, gpus=(0,)), far=VllmSpec("http://10.1.2.3"))

    opened = asyncio.run(open_meters(MeterSpec(rapl=tmp_path, nvml="all"), engines, {}))
    domains = [domain for meter in opened.meters for domain in meter.domains()]
    try:
        assert {domain.name: domain.engines for domain in domains} == {
            "rapl:package-0": {"cpu", "gpu"},
            "gpu:GPU-aa": {"gpu"},
        }
        assert opened.notes == [
            "energy of cpu: measured, rapl:package-0 by rapl@package+dram",
            "energy of gpu: measured, rapl:package-0 by rapl@package+dram, gpu:GPU-aa by nvml-total",
            "energy of far: absent, no meter covers it",
        ]
    finally:
        for meter in opened.meters:
            meter.close()


def test_what_was_asked_for_and_is_not_there_is_told(tmp_path: Path) -> None:  # EN-03
    opened = asyncio.run(open_meters(MeterSpec(rapl=tmp_path / "none"), running(m=ReferenceSpec()), {}))
    assert opened.notes == [
        f"meter rapl: {tmp_path / 'none'} is not there: the kernel has no powercap, or this is a virtual machine or a "
        "container",
        "energy of m: absent while rapl (no-powercap) cannot be read",
    ]


def test_processor_of_a_server_of_others_is_not_read(tmp_path: Path) -> None:
    laptop(tmp_path)
    opened = asyncio.run(open_meters(MeterSpec(rapl=tmp_path), running(m=VllmSpec(URL)), {}))
    assert opened.meters == []
    assert "gpus says that one does" in opened.notes[0]


def test_cpu_time_is_modelled() -> None:
    opened = asyncio.run(open_meters(MeterSpec(cpu_watts_u=10**7), running(m=ReferenceSpec()), {}))
    assert opened.notes == ["energy of m: modelled, cpu-time:m by cpu-time@10W"]
