"""The built book with running code: its pages and a Jupyter server, one process on one address.

The server listens on 127.0.0.1 alone, and every request to it needs a random key. Pages come from
the same address, so that no other origin has to be allowed: not another site, and not pages opened
from disk, whose origin ``null`` every sandboxed frame of any site shares. The key stands behind the
``#`` of the address that is printed, a part that browsers send to nobody; the pages take it out of
the address bar and keep it for this address (``book/_assets/live.js``).

Settings of other Jupyter servers are not read: one that opens a server to the network must not open
this one.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from pathlib import Path
from typing import Any

import yaml
from jupyter_server.serverapp import ServerApp
from tornado.web import HTTPError, RequestHandler, StaticFileHandler
from traitlets.config import Config

from .chapters import BookError, Exit
from .notebooks import SINGLE_THREAD

SITE = "/site/"
ABANDONED = 20 * 60  # seconds after which a kernel that does nothing ends
HERE = {"127.0.0.1", "localhost"}  # names under which a browser on this machine asks


def serve(root: Path, port: int) -> None:
    """Serve the book in `root` until the process is interrupted; no kernel outlives it.

    Parameters
    ----------
    root : Path
        The project; its pages are in ``_build/html``.
    port : int
        To listen on; if it is taken, the next free one, if it is 0, any.

    Raises
    ------
    BookError
        If there are no pages.
    """
    first = first_page(root)
    # Connection files of kernels and their sockets, which need a short path.
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = runtime
        os.environ.update({name: os.environ.get(name, "1") for name in SINGLE_THREAD})
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(root), os.environ.get("PYTHONPATH", "")])
        )
        key = secrets.token_urlsafe(24)
        server = LiveServer(config=settings(root, port, key, first))
        server.initialize(argv=[], find_extensions=False)
        server.web_app.add_handlers(".*$", handlers(root))
        address = f"http://127.0.0.1:{server.port}{SITE}{first}#key={key}"

        def tell() -> None:
            print(
                f"The book with live code, on this machine only; Ctrl-C ends it:\n\n    {address}\n"
            )
            print(f"Its kernels run in {root / 'book'}.", flush=True)

        server.io_loop.add_callback(tell)  # after that which takes the port: nobody else has it
        server.start()
        print("\nEnded, with its kernels.")


def first_page(root: Path) -> str:
    """The book's first page, relative to its site."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    page = f"{toc['root']}.html"
    if not (root / "_build" / "html" / page).is_file():
        raise BookError(
            f"No pages in {root / '_build' / 'html'} yet: `make book` builds them (about 20 "
            "minutes), `make book PROFILE=smoke` in a few minutes with sizes that mean nothing.",
            Exit.MISSING,
        )
    return page


def settings(root: Path, port: int, key: str, first: str) -> Config:
    """Of the Jupyter server."""
    return Config(
        {
            "ServerApp": {
                "ip": "127.0.0.1",
                "port": port,
                "root_dir": str(root),
                "default_url": SITE + first,
                "open_browser": False,
                "terminals_enabled": False,
                "allow_root": True,  # containers
                "log_level": "ERROR",
            },
            "IdentityProvider": {"token": key},
            "PasswordIdentityProvider": {"allow_password_change": False},
            "MappingKernelManager": {
                "cull_idle_timeout": ABANDONED,
                "cull_interval": 60,
                "cull_connected": True,
            },
            "KernelSpecManager": {"allowed_kernelspecs": {"python3"}},
            "KernelManager": {"shutdown_wait_time": 1.0, "transport": "ipc"},
        }
    )


class LiveServer(ServerApp):
    """A Jupyter server that takes its settings from `settings` alone and stops without asking."""

    no_browser_open_file = True

    def load_config_file(self, suppress_errors: bool = True) -> None:
        """Read no file."""

    def init_signal(self) -> None:
        """End with every kernel, at Ctrl-C, at SIGTERM and when the terminal closes."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop(from_signal=True))


class Page(StaticFileHandler):
    """A file of the site, which needs no key: it is what anybody may read on a published site.

    A site that is not published is for this machine: no other site may read it by a name of its
    own that it lets lead here.
    """

    def prepare(self) -> None:
        """Refuse other names of this machine, and names that no file has."""
        if self.request.host_name not in HERE:
            raise HTTPError(403)
        if "\0" in self.path_args[0]:
            raise HTTPError(404)

    def set_extra_headers(self, path: str) -> None:
        """Show what was built last, and in no frame of another page."""
        self.set_header("Cache-Control", "no-cache")
        self.set_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.set_header("X-Content-Type-Options", "nosniff")


class Mark(RequestHandler):
    """Tells a page that it comes from here, in place of the script that says nothing."""

    def get(self) -> None:
        """Say so. Any site can load this script: it must not hold the key."""
        self.set_header("Content-Type", "text/javascript")
        self.set_header("Cache-Control", "no-store")
        self.finish("document.documentElement.dataset.live = 'off';\n")


def handlers(root: Path) -> list[Any]:
    """Of the site, to come before Jupyter's own."""
    site = str(root / "_build" / "html")
    return [
        (SITE + "_static/live_server.js", Mark),
        (SITE + "(.*)", Page, {"path": site, "default_filename": "index.html"}),
    ]
