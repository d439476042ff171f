/* A formula within a line keeps the punctuation around it. What is wider than its column scrolls in a box of its own; here such boxes can be reached and
   scrolled with the keyboard. Which are too wide depends on the width of the page. */
(function () {
  "use strict";

  const BOXES = "pre, .sc-scroll, .sc-claim, .dataframe, .wide-table, .math, mjx-container, .output, .sc-view";

  function mark() {
    for (const box of document.querySelectorAll(BOXES)) {
      const style = getComputedStyle(box);
      const scrolls = box.scrollWidth > box.clientWidth && /auto|scroll/.test(style.overflowX);
      if (scrolls && !box.hasAttribute("tabindex")) {
        box.tabIndex = 0;
        box.dataset.scFocusable = "";
      } else if (!scrolls && "scFocusable" in box.dataset) {
        box.removeAttribute("tabindex");
        delete box.dataset.scFocusable;
      }
    }
  }

  function keepPunctuation() {
    for (const formula of document.querySelectorAll("span.math")) {
      const [before, after] = [formula.previousSibling, formula.nextSibling];
      const opens = before?.nodeType === Node.TEXT_NODE && /[([‘“]+$/.exec(before.data)?.[0];
      const closes = after?.nodeType === Node.TEXT_NODE && /^[.,;:!?)\]’”]+/.exec(after.data)?.[0];
      const pieces = [formula];
      if (opens) pieces.unshift(before.splitText(before.length - opens.length));
      if (closes) {
        after.splitText(closes.length);
        pieces.push(after);
      }
      if (pieces.length > 1) {
        const line = document.createElement("span");
        line.className = "sc-keep";
        formula.replaceWith(line);
        line.append(...pieces);
      }
    }
  }

  let due = 0;
  function soon() {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(mark);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", keepPunctuation);
  else keepPunctuation();
  window.addEventListener("load", () => {
    soon();
    window.MathJax?.startup?.promise?.then(soon); // equations get their width when they are set
  });
  window.addEventListener("resize", soon);
  document.addEventListener("sc-drawn", soon);
  document.addEventListener("sc-output", soon); // of live code
})();
