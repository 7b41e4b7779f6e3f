// What is around every page: the bar at the side, who we are, and what must be said over everything else (connection
// lost, draining).

import { h } from "./dom.js";
import * as format from "./format.js";
import { brandMark, icon, mark } from "./glyphs.js";
import { alarmOf, culprits } from "./overview_facts.js";
import { PAGES } from "./pages.js";
import { to } from "./router.js";
import { nextTheme, theme } from "./theme.js";

export function shell({ overview, session, page, view, lost, refused, failure, age, menuOpen, content, onmenu, onlogout, redraw }) {
  const broker = overview?.broker;
  return h(
    "div",
    { class: ["shell", lost && "is-lost"] },
    h(
      "div",
      { class: ["side", menuOpen && "is-open"] },
      h(
        "div",
        { class: "side-head" },
        h("a", { class: "brand", href: to("overview") }, brandMark(), "Sluiceway"),
        h("button", { class: ["button", "menu-button"], type: "button", "aria-expanded": menuOpen ? "true" : "false", "aria-controls": "nav", onclick: onmenu }, icon("menu"), "Menu"),
      ),
      h("nav", { class: "nav", id: "nav", "aria-label": "Pages" }, Object.entries(PAGES).filter(([, entry]) => entry.icon && !(entry.admin && session?.may?.admin === false) && !(entry.several && !overview?.hubs)).map(([name, entry]) => link(name, entry, page, overview))),
      h(
        "div",
        { class: "side-foot" },
        h("button", { class: ["button", "tiny"], type: "button", onclick: () => (nextTheme(), redraw()) }, `Colours: ${theme()}`),
        broker && h("span", {}, `Version ${broker.version}`, h("br"), `up ${format.age(broker.uptime_seconds)}, ${format.size(broker.rss_bytes)} resident`),
      ),
    ),
    h(
      "div",
      {},
      lost && h("div", { class: ["notice", "bad"], role: "alert" }, h("i", { class: "spin", "aria-hidden": "true" }), refused ? `The broker can't answer now, trying again: ${failure} What is below was true ${age} ago.` : [`Connection to the broker lost, reconnecting. What is below was true ${age} ago.`, h("span", { class: "unseen" }, failure)]),
      !lost && (overview?.hubs ?? []).filter((hub) => hub.missing).map((hub) => h("div", { key: hub.name, class: ["notice", "bad"], role: "alert" }, `${hub.name} is missing: ${hub.missing}. What is there is not shown.`)),
      !lost && broker?.draining && h("div", { class: "notice", role: "status" }, mark("paused"), "Draining: nothing new is taken, consumers empty what is there, then the broker stops."),
      h(
        "div",
        { class: "top" },
        h("h1", {}, view.title),
        h(
          "div",
          { class: "who" },
          health(overview, lost, refused),
          broker && h("span", { title: (broker.listeners ?? []).map(String).join(", ") }, broker.name),
          session?.user && h("span", {}, session.user),
          session?.user && h("button", { class: ["button", "tiny"], type: "button", onclick: onlogout }, "Log out"),
        ),
      ),
      h("main", { id: "content", tabindex: -1 }, content),
    ),
  );
}

function link(name, entry, page, overview) {
  const tally = name === "map" && alarmOf(overview).id ? culprits(overview).length : 0;
  return h(
    "a",
    { href: to(name), "aria-current": (PAGES[page]?.under ?? page) === name ? "page" : null },
    icon(entry.icon),
    entry.label,
    tally > 0 && h("span", { class: "tally" }, format.count(tally), h("span", { class: "unseen" }, " bottlenecks")),
  );
}

function health(overview, lost, refused) {
  if (lost) return h("span", { class: ["state", "is-blocked"] }, mark("blocked"), refused ? "no answer" : "not connected");
  if (!overview) return null;
  const store = overview.store;
  if (store && store.state && store.state !== "ok") return h("a", { class: ["state", "is-blocked"], href: to("store") }, mark("blocked"), `store: ${store.state}`);
  const worst = alarmOf(overview);
  if (worst.id) return h("a", { class: ["state", "is-blocked"], href: to("overview") }, mark("blocked"), format.things(culprits(overview).length, "bottleneck"));
  return h("span", { class: ["state", "is-open"] }, mark("open"), "flowing");
}
