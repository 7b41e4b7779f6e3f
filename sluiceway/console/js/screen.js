// Pictures with letters in them are drawn for the width there is: scaled down, nobody could read them.

const phone = matchMedia("(max-width: 640px)");

export function isNarrow() {
  return phone.matches;
}
