// Light, dark, or what the system prefers; a choice is kept in this browser.

const KEY = "sluiceway-theme";
const CHOICES = ["auto", "light", "dark"];
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  const kept = localStorage.getItem(KEY);
  return CHOICES.includes(kept) ? kept : "auto";
}

export function applyTheme() {
  const chosen = theme();
  document.documentElement.dataset.theme = chosen === "auto" ? (prefersDark.matches ? "dark" : "light") : chosen;
}

export function nextTheme() {
  localStorage.setItem(KEY, CHOICES[(CHOICES.indexOf(theme()) + 1) % CHOICES.length]);
  applyTheme();
}

prefersDark.addEventListener("change", applyTheme);
