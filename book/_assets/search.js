/* Search results come with an excerpt of each page, for which the page is fetched. A book that is opened
   from disk may not fetch its own pages; there results are shown without. Results that lead to a claim
   or a term say so, since all that they are given is the title of its page. */
(function () {
  "use strict";

  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  }

  function name(link) {
    const [, kind, rest] = decodeURIComponent(link.hash).match(/^#(claim|term)-(.+)$/) ?? [];
    if (kind) {
      link.append(` › ${kind} ${rest.replaceAll("-", kind === "claim" ? "." : " ")}`);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const results = document.getElementById("search-results");
    if (results) {
      new MutationObserver((changes) => {
        for (const node of changes.flatMap((change) => [...change.addedNodes])) {
          if (node.nodeName === "LI") {
            name(node.querySelector("a"));
          }
        }
      }).observe(results, { childList: true, subtree: true });
    }
  });
})();
