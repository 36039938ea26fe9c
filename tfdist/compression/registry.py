"""The names of codecs, and texts such as `threshold(tau=0.03)`."""

import difflib
import importlib
import inspect

from tfdist import checks
from tfdist import method_text
from tfdist.compression.base import Codec

_PLACES = {
    "cast": "tfdist.compression.cast:Cast",
    "int8": "tfdist.compression.int8:Int8",
    "threshold": "tfdist.compression.threshold:Threshold",
    "top_k": "tfdist.compression.top_k:TopK",
    "one_bit": "tfdist.compression.one_bit:OneBit",
    "sign": "tfdist.compression.sign:Sign",
    "power_sgd": "tfdist.compression.power_sgd:PowerSGD",
}
_EXAMPLE = "a codec such as threshold(tau=0.03)"


def names() -> tuple[str, ...]:
    """Returns the names of all codecs."""
    return tuple(_PLACES)


def parse(text: str) -> Codec:
    """Returns the codec that a text names.

    Args:
      text: A name and settings, as methods have them: `cast(dtype=float16)`,
        `threshold:tau=0.03:entropy=false`, `threshold`.

    Raises:
      ValueError: There is no such codec, or it has no such setting.
    """
    try:
        spec = method_text.parse(str(text))
    except ValueError as error:
        raise ValueError(
            checks.refusal("compression", _EXAMPLE, text)
        ) from error
    if spec.name not in _PLACES:
        raise ValueError(
            checks.refusal(
                "compression", f"{_EXAMPLE}, of {', '.join(_PLACES)}", text
            )
            + _nearest(spec.name, _PLACES)
        )
    module, _, name = _PLACES[spec.name].partition(":")
    kind = getattr(importlib.import_module(module), name)
    known = list(inspect.signature(kind).parameters)
    for key in spec.settings:
        if key not in known:
            raise ValueError(
                f"{spec.name} has the settings {', '.join(known)}. Received: "
                f"{key!r} in {str(text)!r}.{_nearest(key, known)}"
            )
    return kind(**spec.settings)


def _nearest(name, known):
    found = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {found[0]!r}?" if found else ""
