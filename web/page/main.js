/**
 * The page: its views, the way between them, and what all of them share.
 *
 * @typedef {object} House
 * @property {Api} api
 * @property {Trusted} trusted
 * @property {(work: Promise<any>) => void} guard where what fails in `work` is told to the reader
 * @typedef {object} View
 * @property {string} title
 * @property {HTMLElement} element
 * @property {(name: string, query: URLSearchParams) => Promise<void>} show
 * @property {(live: any) => Promise<void>} [tick] every other second, with how the gateway is
 */

import { Api, ApiError } from "./api.js";
import { CheckView } from "./checkview.js";
import { brief, el, set } from "./dom.js";
import { KeyForm } from "./keyform.js";
import { Listing } from "./listing.js";
import { Overview } from "./overview.js";
import { ReceiptView } from "./receipt.js";
import { Trusted } from "./trusted.js";
import { TrustView } from "./trustview.js";
import { clock } from "./numbers.js";

const POLL_MS = 2000;

/** @param {"localStorage"|"sessionStorage"} kind @returns {Storage|null} null where the browser forbids it */
function storage(kind) {
  try {
    const found = window[kind];
    found.getItem("mesh");
    return found;
  } catch {
    return null;
  }
}

const at = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const main = at("main");

/** @type {House} */
const house = {
  api: new Api(document.baseURI, storage("sessionStorage")),
  trusted: new Trusted(storage("localStorage")),
  guard: (work) => void work.catch(failed),
};
const checkView = new CheckView(house);
/** @type {Record<string, View>} */
const views = {
  overview: new Overview(house),
  receipts: new Listing(house),
  receipt: new ReceiptView(house),
  check: checkView,
  trust: new TrustView(house),
};
const keyForm = new KeyForm((key) => {
  house.api.use(key);
  started = false;
  void route();
});

/** @type {View} */
let view = views.overview;
let turn = 0;
let started = false;

/** @returns {{view: string, name: string, query: URLSearchParams}} */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [word, ...rest] = path.split("/");
  return { view: Object.hasOwn(views, word) ? word : "overview", name: decoded(rest.join("/")), query: new URLSearchParams(query) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Show what the address says. @param {boolean} [moved] the reader went there, so that the focus goes along */
async function route(moved = true) {
  const now = place();
  const mine = ++turn;
  main.removeAttribute("data-ready");
  view = views[now.view];
  document.title = `${view.title} · mesh`;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("data-view") === now.view || (now.view === "receipt" && link.getAttribute("data-view") === "receipts");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (main.firstElementChild !== view.element) set(main, view.element);
  if (moved) {
    scrollTo(0, 0);
    /** @type {HTMLElement|null} */ (view.element.querySelector("h1"))?.focus({ preventScroll: true });
  }
  try {
    if (!started) await meet();
    if (mine === turn) await view.show(now.name, now.query);
    if (mine !== turn) return;
    main.setAttribute("data-ready", now.view);
    notice(null);
  } catch (error) {
    if (mine === turn) failed(error);
  }
}

/** Ask the gateway who it is. A page that only checks files goes on without it. */
async function meet() {
  try {
    const { steward } = await house.api.json("mesh/v1/steward");
    house.trusted.tell(steward);
    started = true;
    notice(null);
  } catch (error) {
    if (view !== views.check && view !== views.trust) throw error;
  }
  who();
}

/** @param {unknown} error */
function failed(error) {
  if (!(error instanceof ApiError)) {
    notice("fault", "This page failed: ", error instanceof Error ? error.message : String(error));
    throw error;
  }
  if (error.status === 401) {
    set(main, keyForm.element);
    keyForm.ask(house.api.key ? error.message : "");
    main.setAttribute("data-ready", "key");
    return;
  }
  notice("fault", error.status === 0 ? `The gateway does not answer. What is shown is as of ${clock(Date.now())} UTC or older.` : `The gateway says: ${error.message}`);
}

/** @param {string|null} kind null takes it away @param {...(Node|string)} text */
function notice(kind, ...text) {
  const box = at("notices");
  const words = text.map((it) => (typeof it === "string" ? it : it.textContent)).join("");
  if (kind && box.textContent === words) return;
  set(box, kind ? el("p", { class: kind, role: "alert" }, ...text) : null);
}

/** The corner of the page: whose gateway it is, and whether a key is in use. */
function who() {
  const { trusted, api } = house;
  const state = trusted.differs ? "wrong" : trusted.pinned ? "verified" : "told";
  const words = { wrong: "not a pinned key", verified: "pinned", told: "not pinned" }[state];
  set(
    at("who"),
    trusted.told ? el("a", { href: "#/trust", class: `badge ${state}`, title: trusted.told }, brief(trusted.told, 16), ` ${words}`) : null,
    api.key ? el("button", { type: "button", on: { click: () => { api.use(""); started = false; who(); void route(); } } }, "Forget the key") : null,
  );
}

let failing = false;

async function poll() {
  if (started && !document.hidden && view.tick && main.contains(view.element)) {
    const mine = view;
    try {
      const live = await house.api.json("mesh/v1/live");
      if (failing) notice(null);
      failing = false;
      if (mine === view) await mine.tick?.(live);
    } catch (error) {
      failing = true;
      failed(error);
    }
  }
  setTimeout(poll, POLL_MS);
}

/** Files that are dropped anywhere are checked; without this the browser would open them in place of the page. */
function takeDrops() {
  const curtain = at("drop");
  let depth = 0;
  const files = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => { if (files(event)) { depth += 1; curtain.hidden = false; } });
  addEventListener("dragleave", (event) => { if (files(event)) { depth -= 1; curtain.hidden = depth <= 0; } });
  addEventListener("dragover", (event) => { if (files(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!files(event)) return;
    event.preventDefault();
    depth = 0;
    curtain.hidden = true;
    const taken = [...(event.dataTransfer?.files ?? [])];
    if (view !== checkView) {
      history.pushState(null, "", "#/check");
      house.guard(route().then(() => checkView.take(taken)));
    } else house.guard(checkView.take(taken));
  });
}

house.trusted.addEventListener("change", who);
addEventListener("hashchange", () => void route());
takeDrops();
void route(false).then(poll);
