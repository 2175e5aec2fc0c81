"""Constants shared by `jupyter_sky.node.bridge` and the notebook that starts it over SSH."""

from __future__ import annotations

MARK = b"--jupyter-sky--\n"
"""What the bridge prints first: login scripts print what comes before, the agent what follows."""

END = b"--jupyter-sky: end--\n"
"""What a script prints last: after that, only what login scripts have left prints."""

NO_AGENT = 3
"""Exit status of the bridge where there is no agent."""

NO_ANSWER = 4
"""Exit status of the bridge where nothing listens at the port."""
