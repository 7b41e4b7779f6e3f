// Begins here: asks who we are, shows the login form or the pages, and asks the broker once a second for what is on
// the page that is open. A page is {title, load(), draw(), key?(event), close?()}, made anew for each address.

import { ask, ApiError, explained, LostError, logout, session } from "./api.js";
import { h, render } from "./dom.js";
import * as format from "./format.js";
import { alarmOf, remember } from "./overview_facts.js";
import { tell } from "./dialogs.js";
import { loginForm } from "./login.js";
import { Poller } from "./poller.js";
import { adjust, go, here } from "./router.js";
import { shell } from "./shell.js";
import { applyTheme } from "./theme.js";
import { PAGES } from "./pages.js";

const root = document.getElementById("app");
const alarm = document.getElementById("alarm");

const state = {
  session: null,
  overview: null,
  answered: false,
  page: "overview",
  view: null,
  error: null,
  lost: false,
  refused: false,
  lastSeen: Date.now(),
  menuOpen: false,
  waiting: false,
  alarmId: "",
};

const context = {
  query: {},
  redraw: () => {
    // Several wishes of one moment are one drawing.
    if (state.waiting) return;
    state.waiting = true;
    queueMicrotask(() => {
      state.waiting = false;
      draw();
    });
  },
  soon: () => poller.now(),
  adjust,
  overview: () => state.overview,
  may: () => state.session?.may ?? {},
};

async function round() {
  if (state.session === null) {
    state.session = await session();
    // Whoever may not see the whole broker begins with the destinations that are theirs.
    if (!mayAdmin() && PAGES[state.page].admin) {
      go("destinations");
      return;
    }
    if (needsLogin()) {
      poller.stop();
      draw();
      throw new ApiError(401, { message: "log in first" });
    }
  }
  const view = state.view;
  const [overview, error] = await Promise.all([
    mayAdmin() ? ask("/overview") : null,
    view.load().then(
      () => null,
      (failure) => {
        // What is wrong with one page (not permitted, not there any more) is shown in its place.
        if (failure instanceof ApiError && failure.status !== 401) return failure;
        throw failure;
      },
    ),
  ]);
  state.overview = overview;
  if (overview) remember(overview);
  state.answered = true;
  if (view === state.view) state.error = error;
  state.lost = false;
  state.lastSeen = Date.now();
  announce();
  draw();
}

function failed(error) {
  if (error instanceof ApiError && error.status === 401) {
    state.session = { ...(state.session ?? {}), user: null, users_configured: true };
    draw();
    return false;
  }
  if (error instanceof LostError || error instanceof ApiError) {
    state.lost = true;
    state.refused = error instanceof ApiError;
    // After a restart of the broker we may be nobody again.
    state.session = null;
    state.failure = state.refused ? explained(error) : error.message;
    draw();
    return true;
  }
  // A mistake of this page: it is said, and what is below is not taken for true. The next round may do better.
  reportError(error);
  state.error = new Error(`the console made a mistake here (${error.message}); reload the page, and report it if that happens again`);
  try {
    draw();
  } catch (again) {
    reportError(again);
  }
  return true;
}

const mayAdmin = () => state.session?.may?.admin !== false;

const needsLogin = () => Boolean(state.session?.users_configured && !state.session.user);

/** Read out when another bottleneck is the worst, or none is left: not each second. */
function announce() {
  const found = alarmOf(state.overview);
  if (found.id === state.alarmId) return;
  if (state.alarmId || found.id) alarm.textContent = found.words;
  state.alarmId = found.id;
}

function open() {
  const { page, query } = here();
  const known = Object.hasOwn(PAGES, page) ? page : "overview";
  if (state.session !== null && !mayAdmin() && PAGES[known].admin) {
    go("destinations");
    return;
  }
  const make = PAGES[known].make;
  state.view?.close?.();
  state.page = known;
  context.query = query;
  state.error = null;
  state.menuOpen = false;
  state.view = make(context);
  draw();
  poller.now();
}

function draw() {
  if (needsLogin()) {
    document.title = "Log in · Sluiceway";
    render(root, loginForm(() => {
      state.session = null;
      poller.now();
    }, context.redraw));
    return;
  }
  const found = alarmOf(state.overview);
  document.title = `${found.id ? "● " : ""}${state.view.title} · ${state.overview?.broker?.name ?? "Sluiceway"}`;
  render(
    root,
    shell({
      ...state,
      age: format.age((Date.now() - state.lastSeen) / 1000),
      content: content(),
      onmenu: () => {
        state.menuOpen = !state.menuOpen;
        draw();
      },
      onlogout: async () => {
        try {
          await logout();
        } catch (error) {
          tell(explained(error));
        }
        state.session = null;
        poller.now();
      },
      redraw: context.redraw,
    }),
  );
}

function content() {
  if (state.error) {
    return h("section", { class: "card" }, h("p", { class: "empty" }, explained(state.error)));
  }
  return state.answered ? state.view.draw() : h("p", { class: "empty" }, state.lost ? (state.refused ? state.failure : "No answer from the broker yet.") : "Asking the broker …");
}

const poller = new Poller(round, failed);

applyTheme();
root.replaceChildren();
addEventListener("hashchange", () => {
  open();
  document.getElementById("content")?.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "")) {
    const search = document.querySelector("main input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
  if (!document.querySelector("dialog[open]")) state.view?.key?.(event);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address after the # is the page's: so the jump is made here.
  event.preventDefault();
  document.getElementById("content")?.focus();
});
setInterval(() => state.lost && draw(), 1000);
open();
