/* Pages with saved widgets (nb_ipywidgets_js in _config.yml): settings before the widgets' own script. */
window.FontAwesomeConfig = { autoReplaceSvg: "nest" }; // or icons replace what widgets hold on to
requirejs.config({ baseUrl: new URL("vendor", document.currentScript.src).href }); // never a content network
