// Questions before something is done, and short words after it. A dialog keeps the focus inside, closes with Escape and
// gives the focus back; that is the browser's own doing.

import { explained } from "./api.js";
import { h, render } from "./dom.js";

const TOLD_SECONDS = 6;

/**
 * Ask. `danger`: the button says so; `typed`: a text that must be typed in first; `fields`: [{name, label, options |
 * type, value, hint}]; `go(values)`: does it, and what it returns is told; its error is shown and the dialog stays.
 */
export function confirm({ title, words, label, danger = false, typed = null, fields = [], go }) {
  const dialog = document.createElement("dialog");
  const values = Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""]));
  let written = "";
  let wrong = null;
  let busy = false;

  const submit = async (event) => {
    event.preventDefault();
    if (busy || (typed !== null && written !== typed)) return;
    busy = true;
    wrong = null;
    draw();
    try {
      const said = await go(values);
      dialog.close();
      if (said) tell(said);
    } catch (error) {
      // A dialog that was closed meanwhile has no place to say so.
      if (dialog.open) wrong = error;
      else tell(explained(error));
    } finally {
      busy = false;
    }
    if (dialog.open) draw();
  };
  const draw = () =>
    render(
      dialog,
      h(
        "form",
        { onsubmit: submit },
        h("h2", { id: "dialog-title" }, title),
        h("p", {}, words),
        fields.filter((field) => !field.when || field.when(values)).map((field) => fieldOf(field, values, draw)),
        typed !== null &&
          h(
            "label",
            { class: "field" },
            h("span", {}, "Type ", h("code", {}, typed), " to confirm"),
            h("input", {
              type: "text",
              autocomplete: "off",
              spellcheck: "false",
              "aria-label": `Type ${typed} to confirm`,
              oninput: (event) => {
                written = event.target.value;
                draw();
              },
            }),
          ),
        wrong && h("p", { class: "wrong", role: "alert" }, explained(wrong)),
        h(
          "div",
          { class: "buttons" },
          h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Cancel"),
          h("button", { class: ["button", "main", danger && "danger"], type: "submit", disabled: busy || (typed !== null && written !== typed) }, busy ? "Working …" : label),
        ),
      ),
    );
  dialog.setAttribute("aria-labelledby", "dialog-title");
  dialog.addEventListener("close", () => dialog.remove());
  draw();
  document.body.append(dialog);
  dialog.showModal();
}

function fieldOf(field, values, draw) {
  const changed = (event) => {
    values[field.name] = event.target.value;
    draw();
  };
  return h(
    "label",
    { class: "field", key: field.name },
    field.label,
    field.options
      ? h("select", { value: values[field.name], onchange: changed }, field.options.map(([value, words]) => h("option", { value }, words)))
      : field.type === "textarea"
        ? h("textarea", { rows: 4, value: values[field.name], oninput: changed, spellcheck: "false" })
        : h("input", { type: field.type ?? "text", value: values[field.name], oninput: changed, autocomplete: "off" }),
    field.hint && h("span", { class: "hint" }, field.hint),
  );
}

const told = [];
let corner = null;

/** Say something for some seconds; it is read out, too. */
export function tell(words) {
  if (corner === null) {
    corner = document.createElement("div");
    corner.className = "told";
    corner.setAttribute("role", "status");
    document.body.append(corner);
  }
  const entry = { key: `${Date.now()} ${told.length}`, words };
  told.push(entry);
  drawTold();
  setTimeout(() => {
    told.splice(told.indexOf(entry), 1);
    drawTold();
  }, TOLD_SECONDS * 1000);
}

function drawTold() {
  render(corner, told.map((entry) => h("p", { key: entry.key }, entry.words)));
}
