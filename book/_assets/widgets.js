/* Pages with saved widgets (nb_ipywidgets_js in _config.yml): settings before the widgets' own script. */
window.FontAwesomeConfig = { autoReplaceSvg: "nest" }; // or icons replace what widgets hold on to
// Never a content network; and a slow machine is waited for, where RequireJS gives up after seven seconds.
requirejs.config({ baseUrl: new URL("vendor", document.currentScript.src).href, waitSeconds: 0 });
