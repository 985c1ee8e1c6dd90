"""The embeddings of the OpenAI API: made up, equal for equal inputs."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from cachelb_fakes.fleet.apis.dialect import Dialect
from cachelb_fakes.fleet.apis.openai import token_ids
from cachelb_fakes.fleet.call import InvalidError, RejectedError, make_call, read_field
from cachelb_fakes.fleet.tokens import encode

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb_fakes.fleet.answer import Answer
    from cachelb_fakes.fleet.call import Call

_DIMENSIONS: Final = 64
_MOST_DIMENSIONS: Final = 4096


class Embeddings(Dialect):
    """``/v1/embeddings``, of one input or of several, which the engine computes as one prompt."""

    id_prefix = "embd-"

    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""
        if body.get("stream"):
            raise RejectedError("embeddings are not streamed")
        self._inputs = _inputs(body.get("input"))
        dimensions = read_field(body, "dimensions", int)
        self._dimensions = _DIMENSIONS if dimensions is None else dimensions
        if not 1 <= self._dimensions <= _MOST_DIMENSIONS:
            raise RejectedError(f"dimensions must be from 1 to {_MOST_DIMENSIONS}")
        self._form = read_field(body, "encoding_format", str) or "float"
        if self._form not in {"float", "base64"}:
            raise RejectedError("encoding_format must be float or base64")
        return make_call(body, np.concatenate(self._inputs), 1, self._engine.options)

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:  # noqa: ARG002 - no text
        """Return the vectors."""
        tokens, vectors = len(call.job.tokens), enumerate(map(self._vector, self._inputs))
        data = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in vectors]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return self._head(call, "list") | {"data": data, "usage": usage}

    def _vector(self, tokens: npt.NDArray[np.uint32]) -> list[float] | str:
        """Draw a vector of length 1 with the tokens as its seed."""
        drawn = np.random.default_rng(zlib.crc32(tokens.data)).standard_normal(self._dimensions)
        vector = (drawn / np.linalg.norm(drawn)).astype("<f4")
        return base64.b64encode(vector.data).decode() if self._form == "base64" else vector.tolist()

    def events(self, call: Call, answer: Answer, interval: int) -> NoReturn:
        """Never called: `parse` refuses streams."""
        raise NotImplementedError

    def closing(self, call: Call, answer: Answer) -> NoReturn:
        """Never called either."""
        raise NotImplementedError


def _inputs(given: object) -> list[npt.NDArray[np.uint32]]:
    """Read the inputs: a text, token ids, or a list of either."""
    if given == []:
        raise InvalidError("input must have at least one text")
    if isinstance(given, list) and isinstance(given[0], str | list):
        if not all(isinstance(each, type(given[0])) for each in given):
            raise InvalidError("input must be a string or a list of strings or of token ids")
        return [one for each in given for one in _inputs(each)]
    return [encode(given) if isinstance(given, str) else token_ids(given, "input")]
