// The problems of a page's layout as texts: elements beyond the page, cut numbers, silent scrolling.
const problems = [], page = document.documentElement.clientWidth, at = e => e.getBoundingClientRect();
const name = e => `${e.tagName.toLowerCase()}.${e.className} ${e.textContent.trim().slice(0, 40)}`;
const isShown = e => at(e).width > 0 && at(e).height > 0;
const boxes = [...document.querySelectorAll(".scroll, .wide")].filter(isShown);
const scrolls = element => element && getComputedStyle(element).overflowX !== "visible";
for (const element of document.querySelectorAll("body *")) {
  if (!isShown(element) || element.closest("svg, option") || scrolls(element.parentElement.closest(".scroll, .wide"))) continue;
  const { left, right } = at(element);
  if (left < -.5 || right > page + .5) problems.push(`beyond the page, ${left} to ${right}: ${name(element)}`);
}
// The text of a cell or card lies in it.
for (const cell of document.querySelectorAll("td, th, .figures div, .facts dd, li, p:not(.answer, .text)")) {
  if (!isShown(cell) || !cell.textContent.trim()) continue;
  const range = document.createRange();
  range.selectNodeContents(cell);
  const { left, right } = range.getBoundingClientRect(), outer = at(cell);
  if (left < outer.left - 1 || right > outer.right + 1) problems.push(`cut: ${name(cell)}`);
}
for (const box of boxes) {
  const isWide = box.scrollWidth > box.clientWidth + 1;
  const sign = getComputedStyle(box, "::before").content;
  if (isWide !== (sign !== "none")) problems.push(`${isWide ? "scrolls without a sign" : "needs no sign"}: ${name(box)}`);
  // The names leave room for a number.
  for (const row of box.querySelectorAll("tbody tr")) {
    const number = row.querySelector("th ~ td:not(.reason, .text)");
    if (number && at(number).right > at(box).right + 1) { problems.push(`no number beside ${name(row)}`); break; }
  }
}
// No option or name is broken after a hyphen, and every name's settings are below it.
for (const part of document.querySelectorAll(".whole"))
  if (part.getClientRects().length > 1) problems.push(`broken: ${name(part)}`);
for (const label of document.querySelectorAll(".label")) {
  const settings = label.querySelector(".settings");
  if (settings && isShown(label) && at(settings).top < at(label).top + 10) problems.push(`beside the name: ${name(label)}`);
}
return problems;
