"""The Vega libraries as one script for a page, out of ``vl-convert-python``."""

from __future__ import annotations

import re

VEGA_LITE = "5.20"
"""The version of Vega-Lite that Altair 5.5 writes."""

_ENDING = "window.vega=__default;window.vegaLite=__default1;"
_VERSIONS = re.compile(r'\{vega:(\w+)\.version,"vega-lite":(\w+)\?')


def vega_script() -> str:
    """JavaScript that sets ``vegaEmbed``, ``vega`` and ``vegaLite`` and no other global name.

    The bundle of vl-convert means to set all three, but sets the last two to the libraries'
    default exports, which are null (vl-convert-python 1.9). Here they are the libraries, as
    vega-embed inside the bundle knows them.

    Raises
    ------
    RuntimeError
        If the bundle is not of the expected form, as may be with another vl-convert.
    """
    import vl_convert

    bundle = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # pyright: ignore[reportCallIssue]
    names = _VERSIONS.search(bundle)
    if names is None or not bundle.rstrip().endswith(_ENDING):
        raise RuntimeError(
            f"expected vl-convert's JavaScript bundle to end in {_ENDING!r} and to name its Vega "
            f"libraries, got an end of {bundle.rstrip()[-80:]!r}. Install the pinned "
            "vl-convert-python (requirements.txt)."
        )
    vega, vega_lite = names.groups()
    body = bundle.rstrip().removesuffix(_ENDING)
    return f"(function(){{{body}window.vega={vega};window.vegaLite={vega_lite};\n}})();"
