// The form for those who have a name. Says no more of a refusal than the broker does.

import { explained, login } from "./api.js";
import { h } from "./dom.js";
import { brandMark } from "./glyphs.js";

let wrong = "";
let busy = false;

/** `entered(session)` once it was right. */
export function loginForm(entered, redraw) {
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    const form = new FormData(event.target);
    busy = true;
    wrong = "";
    redraw();
    try {
      const found = await login(form.get("login"), form.get("passcode"));
      event.target.reset();
      entered(found);
    } catch (error) {
      wrong = explained(error);
    } finally {
      busy = false;
      redraw();
    }
  };
  return h(
    "main",
    { class: "login", id: "content", tabindex: -1 },
    h(
      "form",
      { onsubmit: submit, "aria-label": "Log in" },
      h("div", { class: "brand" }, brandMark(), "Sluiceway"),
      h("label", { class: "field" }, "Login", h("input", { name: "login", autocomplete: "username", required: true, ref: (element) => setTimeout(() => element.focus()) })),
      h("label", { class: "field" }, "Passcode", h("input", { name: "passcode", type: "password", autocomplete: "current-password", required: true })),
      wrong && h("p", { class: "wrong", role: "alert" }, wrong),
      h("button", { class: ["button", "main"], type: "submit", disabled: busy }, busy ? "Asking …" : "Log in"),
    ),
  );
}
