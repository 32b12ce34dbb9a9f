#!/usr/bin/env python3
"""Makes src/router/words.bin from the sentence-transformers model all-MiniLM-L6-v2 (Apache License 2.0).

    scripts/words.py MODEL_FOLDER [src/router/words.bin]

MODEL_FOLDER holds model.safetensors and vocab.txt. Needs numpy and scipy. The file is checked in: this runs only when
the model or the layout changes.
"""

import functools
import json
import math
import pathlib
import struct
import sys

import numpy
from scipy.special import erf

DIMENSIONS = 128
# The entries before are reserved.
FIRST = 999
BEGIN, END = 101, 102
LAYERS, HEADS = 6, 12


def tensors(file):
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    index = json.loads(content[8 : 8 + length])
    kinds = {"F32": numpy.float32, "F16": numpy.float16}

    @functools.cache
    def tensor(name):
        entry = index[name]
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        return numpy.frombuffer(content[start:end], kinds[entry["dtype"]]).reshape(entry["shape"]).astype(numpy.float32)

    return tensor


def normal(values, weight, bias):
    centred = values - values.mean(-1, keepdims=True)
    return centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


def outputs(tensor, pieces):
    """The mean of what the model gives for each piece between the marks of begin and end."""

    def linear(values, name):
        return values @ tensor(name + ".weight").T + tensor(name + ".bias")

    def norm(values, name):
        return normal(values, tensor(name + ".weight"), tensor(name + ".bias"))

    ids = numpy.stack([numpy.full(len(pieces), BEGIN), pieces, numpy.full(len(pieces), END)], 1)
    count, length = ids.shape
    values = tensor("embeddings.word_embeddings.weight")[ids]
    values = values + tensor("embeddings.position_embeddings.weight")[:length]
    values = norm(values + tensor("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
    width = values.shape[-1]
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."

        def heads(name):
            split = linear(values, at + "attention.self." + name).reshape(count, length, HEADS, width // HEADS)
            return split.transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        weights = query @ key.transpose(0, 1, 3, 2) / math.sqrt(width // HEADS)
        weights = numpy.exp(weights - weights.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(count, length, width)
        values = norm(values + linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        inner = linear(values, at + "intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / math.sqrt(2)))
        values = norm(values + linear(inner, at + "output.dense"), at + "output.LayerNorm")
    return values.mean(1)


def fnv(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def is_kept(entry):
    word = entry.removeprefix("##")
    return word.isalnum() and all(ord(letter) < 0x250 for letter in word)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    model = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else "src/router/words.bin")
    vocabulary = (model / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tensor = tensors(model / "model.safetensors")
    every = numpy.arange(len(vocabulary))
    vectors = numpy.concatenate([outputs(tensor, every[start : start + 512]) for start in range(0, len(every), 512)])
    vectors = vectors.astype(numpy.float64) - vectors[FIRST:].mean(0, dtype=numpy.float64)
    _, _, axes = numpy.linalg.svd(vectors[FIRST:], full_matrices=False)
    # The vocabulary is sorted by frequency: its logarithm stands for how much a word says.
    vectors = vectors @ axes[:DIMENSIONS].T * numpy.log(2 + every)[:, None] / 10
    rows = {fnv(entry): row for row, entry in enumerate(vocabulary) if row >= FIRST and is_kept(entry)}
    hashes = sorted(rows)
    chosen = vectors[[rows[value] for value in hashes]]
    scales = numpy.abs(chosen).max(1) / 127
    header = b"SKWV" + struct.pack("<III", 1, len(hashes), DIMENSIONS)
    numbers = numpy.array(hashes, "<u4").tobytes() + scales.astype("<f4").tobytes()
    target.write_bytes(header + numbers + numpy.round(chosen / scales[:, None]).astype(numpy.int8).tobytes())
    print(f"{target}: {len(hashes)} words, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
