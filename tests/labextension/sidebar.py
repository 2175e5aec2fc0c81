"""A user of a notebook, with the sidebar beside it."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.notebook.panel.jupyter import NotebookUser, Pages, Server
from tests.paths import ROOT

_AXE = ROOT / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
_CHECK = """async place => {
  const rules = { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] };
  const { violations } = await axe.run(place, rules);
  return violations.flatMap(({ help, nodes }) => nodes.map(({ html }) => `${help}: ${html}`));
}"""
# Notifications go after seconds: what they have said is kept.
_KEEP_TOASTS = """() => {
  window.toasts = [];
  const keep = () => {
    for (const toast of document.querySelectorAll('.Toastify__toast')) {
      window.toasts.push(toast.textContent);
    }
  };
  window.keepsToasts?.disconnect();
  window.keepsToasts = new MutationObserver(keep);
  window.keepsToasts.observe(document.body, { childList: true, subtree: true });
}"""


@contextmanager
def settings(server: Server, **values: Any) -> Iterator[None]:
    """Pages that are loaded meanwhile have these settings of ours."""

    def put(values: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"{server.address}/lab/api/settings/jupyter-sky:clusters",
            method="PUT",
            data=json.dumps({"raw": json.dumps(values)}).encode(),
            headers={"Authorization": f"token {server.token}"},
        )
        urllib.request.urlopen(request, timeout=60).close()

    put(values)
    try:
        yield
    finally:
        put({})


def ask(server: Server, path: str, method: str = "GET") -> Any:
    """Ask what is behind the sidebar."""
    request = urllib.request.Request(
        f"{server.address}/jupyter-sky/api/{path}",
        method=method,
        data=b"{}" if method == "POST" else None,
        headers={"Authorization": f"token {server.token}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def end_clusters(server: Server) -> None:
    """End all clusters that there are."""
    for cluster in ask(server, "clusters")["clusters"]:
        ask(server, f"clusters/{cluster['id']}/down", "POST")


class SidebarUser(NotebookUser):
    """A user who looks at clusters in the sidebar."""

    def __init__(self, pages: Pages, server: Server, place: str, name: str, *cells: Any) -> None:
        super().__init__(pages, server, place, name, *cells)
        self.trouble: list[str] = []
        self.page.on("pageerror", self._note)
        self.page.evaluate(_KEEP_TOASTS)
        self.do("show")

    def _note(self, error: Any) -> None:
        # Notebook 7.6 itself stumbles once at its start.
        if "jupyter-sky" in (error.stack or ""):
            self.trouble.append(str(error))

    def do(self, command: str) -> None:
        """Run a command of ours, as from the palette."""
        self.page.evaluate(
            "id => void jupyterapp.commands.execute(id)",
            f"jupyter-sky:{command}",
        )

    @property
    def sidebar(self) -> Any:
        """The sidebar."""
        return self.page.get_by_role("region", name="Clusters")

    def card(self, name: str, state: str = "") -> Any:
        """The card of a cluster, which is in that state."""
        card = self.sidebar.get_by_role("listitem").filter(has_text=name)
        return card.filter(has_text=re.compile(rf"{state} · ")) if state else card

    def opened(self, name: str) -> Any:
        """Open the card of a cluster; return it."""
        card = self.card(name)
        card.get_by_role("button", expanded=False).click()
        return card

    def flaws(self, place: str) -> list[str]:
        """What axe finds wrong there for those who use a screen reader, or no mouse."""
        self.page.evaluate(_AXE.read_text())
        return list(self.page.evaluate(_CHECK, place))

    def confirm(self, answer: str) -> None:
        """Answer the question that is asked."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name=answer).click()
        dialog.wait_for(state="detached")

    def wait_for_toast(self, text: str) -> None:
        """Wait until a notification has shown a text since the notebook was opened."""
        self.page.wait_for_function(
            "text => toasts.some((shown) => shown.includes(text))", arg=text
        )

    def reload(self) -> None:
        """Load the page again, as it was."""
        self._pages.load_again(self.page, re.sub(r"[?&]reset", "", self.page.url))
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def cells(self) -> list[str]:
        """The code that the notebook has."""
        return list(
            self.page.evaluate(
                """() => jupyterapp.shell.currentWidget.content.widgets
                  .filter(({ model }) => model.type === 'code')
                  .map(({ model }) => model.sharedModel.getSource())"""
            )
        )

    def leave(self) -> None:
        """End the kernel and close the notebook."""
        self.page.remove_listener("pageerror", self._note)
        self._leave()
