"""A session of ONNX Runtime, opened as everywhere here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from partita.errors import CaptureError, sentence_of
from partita.offload.onnx_session import session_options


def open_session(data: bytes, name: str, profile: Path | None = None) -> Any:
    """A session with the options of all sessions here. Raises CaptureError where ONNX Runtime refuses the model."""
    try:
        return onnxruntime.InferenceSession(data, session_options(profile), providers=["CPUExecutionProvider"])
    except Exception as error:  # a class for each code of ONNX Runtime, with no root of their own
        raise CaptureError(
            f"{name}: ONNX Runtime {onnxruntime.__version__} refuses it: {sentence_of(error)}",
            hint="export it for an older opset, or update onnxruntime",
        ) from error
