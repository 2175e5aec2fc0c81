"""What ranks print as text: their bytes come in pieces that may end within a character."""

from __future__ import annotations

import codecs

from jupyter_sky.transport.protocol.events import Output


class OutputDecoder:
    """Decodes what ranks print, each stream of each rank by itself."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[int, str], codecs.IncrementalDecoder] = {}

    def decode(self, event: Output) -> str:
        """Return the text of an event, with what the one before of its stream has begun."""
        key = (event.rank, event.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(event.data)
