"use strict";
// A box that is wider than its place says that it scrolls, and fades out where it goes on.
(() => {
  const mark = box => {
    const hidden = box.scrollWidth - box.clientWidth;
    box.classList.toggle("scrolls", hidden > 1);
    box.classList.toggle("goes-on", hidden - box.scrollLeft > 1);
  };
  const observer = new ResizeObserver(changes => {
    for (const { target } of changes) mark(target.closest(".scroll, .wide"));
  });
  for (const box of document.querySelectorAll(".scroll, .wide")) {
    box.addEventListener("scroll", () => mark(box), { passive: true });
    for (const element of [box, ...box.children]) observer.observe(element);
  }
})();
