"""Any value of a data row as valid JSON text, for people and for files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np


def to_json(value: object) -> str:
    """``value`` as one line of JSON.

    NaN and infinities become the strings "nan", "inf" and "-inf"; numpy scalars and arrays become numbers and
    lists; what JSON has no form for (a date, bytes) becomes its text.
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    return str(value)
