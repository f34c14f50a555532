"""Reports and the page of launches over nodes that are really asked."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.sshd.following import ended

if TYPE_CHECKING:
    from tests.sshd.hosts import Site


def report(site: Site, *argv: str) -> dict[str, Any]:
    done = site.mesh("report", "ref", "--json", *argv)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["recipes"]
    return dict(told)


def asked(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return dict(json.load(answer))


def test_report_that_asks_the_nodes_tells_what_runs_from_what_was_launched(one: Site) -> None:
    one.reference()
    assert one.mesh("serve", "ref").returncode == 0
    told = report(one, "--live")
    assert (told["state"], told["drift"], told["unknown"]) == ("up", [], [])
    assert report(one)["unknown"] == ["what runs was not looked at: --live does"]
    config = one.folder / "launch.toml"
    config.write_text(config.read_text() + "# another word\n")
    record = one.folder / "launches" / "ref" / told["run"] / "launch.record"
    data = record.read_bytes()
    record.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    told = report(one, "--live")
    assert told["drift"][0].startswith("launch record: ")
    assert told["drift"][1] == "launch.toml: changed since the launch, or another one is read now"
    assert told["unknown"] == ["rank 0 on n0: nothing is recorded of this rank"]
    page = one.folder / "report.html"
    assert one.mesh("report", "--live", "--out", str(page)).returncode == 0
    assert "launch.toml: changed since the launch" in page.read_text()
    assert one.mesh("stop", "ref").returncode == 0


def test_page_of_launches_looks_at_the_nodes_by_itself_and_a_gateway_shows_the_same(one: Site) -> None:
    one.reference()
    web = one.begin("web", "--port", "0", "--every", "1", "--json")
    assert web.stdout is not None
    with ended(web):
        lines = []
        while "}" not in (line := web.stdout.readline()):
            assert line
            lines.append(line)
        url = json.loads("".join([*lines, line]))["url"]
        assert one.mesh("serve", "ref").returncode == 0
        until = time.monotonic() + 600
        while True:
            told = asked(f"{url}/mesh/v1/launches")
            ready = [run for run in told["runs"] if run.get("readiness") == "ready"]
            if ready and ready[0]["state"] != "starting":  # a look may begin before the launch has seen it serve
                break
            assert time.monotonic() < until, told
            time.sleep(0.05)
        assert (ready[0]["recipe"], ready[0]["state"], ready[0]["nodes"][0]["liveness"]) == ("ref", "up", "alive")
        assert told["clusters"][0]["state"] == "up"
        assert one.mesh("stop", "ref").returncode == 0
        (run,) = asked(f"{url}/mesh/v1/launches")["runs"]
        assert (run["state"], run["verified"]) == ("closed", True)
        web.send_signal(signal.SIGTERM)
        assert web.wait() == 0
    assert one.mesh("web", "--host", "0.0.0.0", "--port", "0").returncode == 2
