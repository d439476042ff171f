/* Search results come with an excerpt of each page, for which the page is fetched. A book that is opened
   from disk may not fetch its own pages; there results are shown without. */
(function () {
  "use strict";

  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  }
})();
