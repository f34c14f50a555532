"""What a serve cost, and how that figure came about."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from mesh.schema.limits import MAX_SOURCES
from mesh.schema.value import Id16, Token, UInt, Value, check_known_name, remembered

Basis = Literal["measured", "allocated", "modelled", "unresolved", "absent"]
# From the strongest claim to none. A serve on several domains has the weakest basis among them.
BASES: tuple[str, ...] = get_args(Basis)
WITHOUT_FIGURE = frozenset({"unresolved", "absent"})

# A sharing rule and its version: `equal/1`.
Rule = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9._-]{0,53}[a-z0-9])?/[1-9][0-9]{0,3}\Z")]

_check_rule = remembered(Rule)


class EnergySource(Value):
    """One meter domain's share. `uj` microjoules; `resolution_ns` the observed update interval of its counter."""

    domain: str
    method: str
    uj: UInt
    resolution_ns: UInt

    def __post_init__(self) -> None:
        check_known_name(self.domain, "domain")
        check_known_name(self.method, "method")


class Energy(Value):
    """`uj` is the sum over the sources, in microjoules; absent exactly where the basis is unresolved or absent, and
    `reason` then says why. `span_ns` is the serve's monotonic duration, absent only where nobody lived to see it end;
    `covered_ns` the part that was observed where that is less. Where the serve had company: the sharing `rule`, the
    `window_uj` counted while it ran, and `peak_sharers`. `epoch` names the span of counter readings that the figure
    belongs to."""

    basis: Basis
    sources: Annotated[list[EnergySource], Meta(max_length=MAX_SOURCES)]
    span_ns: UInt | None = None
    uj: UInt | None = None
    rule: str | None = None
    window_uj: UInt | None = None
    peak_sharers: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    covered_ns: UInt | None = None
    epoch: Id16 | None = None
    reason: Token | None = None

    def __post_init__(self) -> None:
        uj, basis = self.uj, self.basis
        if self.rule is not None:
            _check_rule(self.rule, "rule")
        if basis in WITHOUT_FIGURE:
            if uj is not None:
                raise ValueError(f"uj must be absent where basis is {basis}")
            if self.reason is None:
                raise ValueError(f"reason must be there where basis is {basis}")
            if self.sources:
                raise ValueError(f"sources must be empty where basis is {basis}")
        else:
            if uj is None:
                raise ValueError(f"uj must be there where basis is {basis}")
            if self.reason is not None:
                raise ValueError(f"reason must be absent where basis is {basis}")
            if not self.sources:
                raise ValueError(f"sources must not be empty where basis is {basis}")
            total, before = 0, ""
            for source in self.sources:
                total += source.uj
                if source.domain <= before:
                    raise ValueError("sources must be sorted by domain, each once")
                before = source.domain
            if total != uj:
                raise ValueError("uj is not the sum of the sources")
        if not (self.rule is None) == (self.window_uj is None) == (self.peak_sharers is None):
            raise ValueError("rule, window_uj and peak_sharers come together")
        span_ns, covered_ns = self.span_ns, self.covered_ns
        if span_ns is None and basis != "absent":
            raise ValueError(f"span_ns must be there where basis is {basis}")
        if covered_ns is not None and covered_ns > (span_ns or 0):
            raise ValueError("covered_ns exceeds span_ns")

    def lasting(self, span_ns: int) -> Energy:
        """This figure with another span, for whose limits the caller answers as in `changed`. Where all of it was
        covered no other field has to do with that, so that there is nothing to check again."""
        if self.covered_ns is not None:
            return self.changed(span_ns=span_ns)
        return self.beside("span_ns", span_ns)
