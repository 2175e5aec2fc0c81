"""Decodes the output of ranks: its bytes arrive in pieces that may end within a character."""

from __future__ import annotations

import codecs

from jupyter_sky.transport.protocol.events import Output


class OutputDecoder:
    """Decodes the output of ranks, separately for each stream of each rank."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[int, str], codecs.IncrementalDecoder] = {}

    def decode(self, event: Output) -> str:
        """Return the text of an event, completing a character of the stream's previous event."""
        key = (event.rank, event.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(event.data)
