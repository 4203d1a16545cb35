"""GGUF files that the `gguf` package writes."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

Tensors = Mapping[str, tuple[np.ndarray, str | None]]


def write_gguf(path: Path, tensors: Tensors) -> Path:
    """A model file.

    Args:
        path: Of the file.
        tensors: By name the array, and for bytes of blocks their GGML type.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for name, (array, kind) in tensors.items():
        raw = None if kind is None else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, array, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
