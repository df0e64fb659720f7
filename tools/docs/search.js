// Titles, headings and names of the reference that hold every word; names come first.
const field = document.getElementById("search");
const found = document.getElementById("found");
const up = document.body.dataset.up;

function matches(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const hits = INDEX.filter(([title]) => words.every((word) => title.toLowerCase().includes(word)));
  const rank = ([title]) => {
    const last = title.toLowerCase().split(".").pop();
    return last === words[0] ? 0 : last.startsWith(words[0]) ? 1 : 2;
  };
  return hits.sort((a, b) => rank(a) - rank(b) || a[0].length - b[0].length).slice(0, 12);
}

function show() {
  const hits = matches(field.value);
  found.replaceChildren(
    ...hits.map(([title, address, page]) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = up + address;
      link.textContent = title;
      const where = document.createElement("small");
      where.textContent = page === title ? "" : " " + page;
      link.append(where);
      item.append(link);
      return item;
    })
  );
  found.hidden = !field.value.trim();
  if (!found.hidden && !hits.length) found.textContent = "Nothing has that in its name.";
}

field.addEventListener("input", show);
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") found.querySelector("a")?.click();
  if (event.key === "Escape") {
    field.value = "";
    show();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== field) {
    event.preventDefault();
    field.focus();
  }
});
// On a narrow screen the contents are closed until they are asked for.
if (window.matchMedia("(max-width: 60rem)").matches) document.getElementById("contents").open = false;
