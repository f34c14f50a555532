/**
 * The page at /launches: clusters, their nodes, and the runs on them, as the launch state folder tells of them.
 *
 * @typedef {{node: string, address?: string, state: string, why?: string}} Node_
 * @typedef {{cluster: string, state: string, nodes: Node_[], blocked?: string[]}} Cluster
 * @typedef {{recipe: string, run: string, state: string, readiness?: string, why?: string, model?: string, engine?: string,
 *   cluster?: string, launch_digest?: string, opened_ms?: number, closed_ms?: number, how?: string, verified?: boolean,
 *   nodes: {node: string, rank: number, liveness: string}[]}} Run
 */

import { Api, ApiError } from "./api.js";
import { el, id, name, say, set } from "./dom.js";
import { KeyForm } from "./keyform.js";
import { prose } from "./marks.js";
import { counted, duration, utc } from "./numbers.js";

const POLL_MS = 2000;
const main = /** @type {HTMLElement} */ (document.getElementById("launches"));
const notices = /** @type {HTMLElement} */ (document.getElementById("notices"));
const looked = /** @type {HTMLElement} */ (document.getElementById("looked"));

/** How a state looks, a mark with its word: never colour alone. @type {Record<string, [string, string]>} */
const LOOKS = {
  up: ["verified", "✓"], ready: ["verified", "✓"], reachable: ["verified", "✓"], alive: ["verified", "✓"],
  starting: ["told", "…"], "not-ready": ["told", "!"], open: ["told", "?"], unknown: ["", "?"],
  inconclusive: ["told", "?"], stale: ["wrong", "✗"], differs: ["wrong", "✗"], down: ["wrong", "✗"],
  unreachable: ["wrong", "✗"], refused: ["wrong", "✗"], dead: ["wrong", "✗"], closed: ["", "■"],
};

/** @returns {Storage|null} null where the browser forbids it */
function storage() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

const api = new Api(document.baseURI, storage());
const keyForm = new KeyForm((key) => {
  api.use(key);
  shown = "";
  void show();
});
let shown = "";
let closedToo = false;
/** @type {any} */
let told = null;

/** @param {string} state */
function badge(state) {
  const [look, mark] = LOOKS[state] ?? ["", "?"];
  return el("span", { class: `badge ${look}` }, el("span", { class: "mark", "aria-hidden": "true" }, mark), state.replace("-", " "));
}

/** @param {number|undefined} ms */
const time = (ms) => (ms === undefined ? "not known" : utc(BigInt(ms) * 1000000n));

/** @param {number} ms */
const long = (ms) => duration(BigInt(Math.max(0, Math.round(ms / 1000))) * 1000000000n).replace(/\.000 s$/, " s");

/** Ask, and show what has changed. What is open, and what the keyboard is on, stays so. */
async function show() {
  try {
    told = await api.json("mesh/v1/launches");
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      shown = "";
      set(main, keyForm.element);
      keyForm.ask(api.key ? error.message : "");
      main.setAttribute("data-ready", "key");
      return;
    }
    notice(error instanceof ApiError && error.status === 0 ? "Nobody answers any more: what is shown is old." : String(error instanceof Error ? error.message : error));
    main.setAttribute("data-ready", "fault");
    return;
  }
  notice(told.fault ? `Not all can be shown: ${told.fault}.` : null);
  age();
  const { now_ms: _, looked_ms: __, ...rest } = told;
  const text = JSON.stringify([rest, closedToo]);
  if (text !== shown) {
    shown = text;
    draw();
  }
  main.setAttribute("data-ready", "launches");
}

/** @param {string|null} text */
function notice(text) {
  if ((text ?? "") === notices.textContent) return;
  set(notices, text ? el("p", { class: "fault", role: "alert" }, text) : null);
}

/** How old the last look is. */
function age() {
  const words = !told.configured ? "" : told.looked_ms === undefined ? "nobody has looked yet"
    : `looked ${long(told.now_ms - told.looked_ms)} ago`;
  set(looked, words ? el("span", { class: `badge ${told.fresh ? "verified" : "told"}` }, words) : null);
}

function draw() {
  const focused = document.activeElement?.getAttribute("data-key");
  const open = new Set([...main.querySelectorAll("details[open]")].map((it) => it.getAttribute("data-key")));
  set(main, el("div", { class: "head" }, el("h1", { tabindex: "-1" }, "Launches")), ...(told.configured ? all() : [unsaid()]));
  for (const it of /** @type {NodeListOf<HTMLDetailsElement>} */ (main.querySelectorAll("details"))) it.open = open.has(it.getAttribute("data-key"));
  if (focused) /** @type {HTMLElement|null} */ (main.querySelector(`[data-key="${CSS.escape(focused)}"]`))?.focus();
}

function unsaid() {
  return el("p", { class: "empty" }, "This gateway shows no launches: its mesh.toml names no state folder in ", el("code", {}, "[launch]"), ".");
}

function all() {
  /** @type {{clusters: Cluster[], runs: Run[]}} */
  const { clusters, runs } = told;
  const open = runs.filter((run) => run.state !== "closed");
  const up = clusters.filter((one) => one.state === "up").length;
  const summary = `${up} of ${counted(clusters.length, "cluster")} up, ${open.filter((run) => run.readiness === "ready").length} of ${counted(open.length, "open run")} ready`;
  const nobody = "Nobody has looked at the nodes lately: `mesh launch web` does, and `mesh launch health --watch`.";
  say(told.fresh ? summary : "Nobody has looked at the nodes lately.");
  return [
    el("p", { class: "story" }, ...(told.fresh ? [`${summary}.`] : prose(nobody))),
    el("h2", {}, "Clusters"),
    clusters.length ? el("div", { class: "fleet" }, ...clusters.map(clusterCard)) : el("p", { class: "empty" }, "None was looked at."),
    el("div", { class: "head" }, el("h2", {}, "Runs"), choice(runs.length - open.length)),
    (closedToo ? runs : open).length ? el("ul", { class: "runs" }, ...(closedToo ? runs : open).map(runCard)) : el("p", { class: "empty" }, closedToo ? "None was ever launched." : "None is open."),
  ];
}

/** @param {number} closed how many there are */
function choice(closed) {
  const one = (/** @type {boolean} */ value, /** @type {string} */ words) =>
    el("label", {}, el("input", {
      type: "radio", name: "which", value: value ? "all" : "open", checked: closedToo === value, "data-key": `which ${value}`,
      on: { change: () => { closedToo = value; void show(); } },
    }), el("span", {}, words));
  return el("fieldset", { class: "windows" }, el("legend", { class: "unseen" }, "Which runs"), one(false, "Open"), one(true, `All, with ${closed} closed`));
}

/** @param {Cluster} one */
function clusterCard(one) {
  return el("section", { class: "card" }, el("h3", {}, name(one.cluster), badge(one.state)),
    ...(one.blocked ?? []).map((/** @type {string} */ cause) => el("p", { class: "quiet" }, cause)),
    el("ul", { class: "nodes" }, ...one.nodes.map((node) => el("li", {},
      el("span", {}, name(node.node), " ", el("span", { class: "address" }, node.address ?? "")),
      badge(node.state), node.why && node.state !== "unknown" ? el("span", { class: "why" }, node.why) : null))));
}

/** @param {Run} run */
function runCard(run) {
  const until = run.closed_ms ?? told.now_ms;
  const ran = run.opened_ms === undefined ? "" : `, for ${minutes(until - run.opened_ms)}`;
  const ended = run.state === "closed" ? `${run.how ?? "ended"}${run.verified ? ", and seen to be gone" : ", nothing verified"}` : "";
  const rows = [
    ["Run", id(run.run)], ["Engine", run.engine ?? "not known"], ["Cluster", run.cluster ?? "not known"],
    ["Launched", time(run.opened_ms)], run.closed_ms === undefined ? null : ["Closed", time(run.closed_ms)],
    ["Record", run.launch_digest ? id(run.launch_digest) : "none"],
    ...run.nodes.map((node) => [`Rank ${node.rank}`, el("span", {}, name(node.node), " ", run.state === "closed" ? null : badge(node.liveness))]),
  ].filter((row) => row !== null);
  return el("li", { class: `card run ${run.state}` },
    el("h3", {}, name(run.recipe)),
    el("div", { class: "marks" }, badge(run.state), run.readiness && run.readiness !== "unknown" ? badge(run.readiness) : null),
    el("p", {}, name(run.model ?? "model not known"), el("span", { class: "quiet" }, " on ", ...run.nodes.flatMap((it, i) => [i ? ", " : "", name(it.node)]), ran)),
    run.why || ended ? el("p", { class: "quiet" }, [ended, run.why].filter(Boolean).join(": ")) : null,
    el("details", { "data-key": `run ${run.run}` }, el("summary", { "data-key": `sum ${run.run}` }, "More of it"),
      el("dl", {}, ...rows.flatMap((row) => [el("dt", {}, row[0]), el("dd", {}, row[1])]))));
}

/** Coarse, so that a page at which nothing happens stays as it is. @param {number} ms */
function minutes(ms) {
  return ms < 60000 ? "less than a minute" : long(Math.floor(ms / 60000) * 60000).replace(/ 0 s$/, "");
}

async function poll() {
  if (!document.hidden && main.getAttribute("data-ready") !== "key") await show();
  setTimeout(poll, POLL_MS);
}

void show().then(() => setTimeout(poll, POLL_MS));
