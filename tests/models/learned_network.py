"""The obvious network of learned routing: read from a model's file, computed with matrices in double precision."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HIDDEN = 128


@dataclass(eq=False)
class NaiveModel:
    """A network by its matrices."""

    gpus: list[str]
    seen: list[bool]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    cost: tuple[float, float]
    layers: list[tuple[NDArray[np.float64], NDArray[np.float64]]]

    @classmethod
    def from_bytes(cls, data: bytes) -> NaiveModel:
        """Read a file; its checksum is tested elsewhere."""
        at = 8 + 4 + 2 + 8
        columns = 9 if data[13] else 7
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        gpus = []
        for _ in range(count):
            (length,) = struct.unpack_from("<I", data, at)
            gpus.append(data[at + 4 : at + 4 + length].decode())
            at += 4 + length
        seen = [bool(flag) for flag in data[at : at + count + 1]]
        at += count + 1
        four = np.frombuffer(data, "<f4", 4 * columns, at).reshape(4, columns)
        at += 16 * columns
        cost = struct.unpack_from("<2f", data, at)
        at += 8 + 4 * 8 + 2 * 8
        numbers = np.frombuffer(data, "<f4", (len(data) - 8 - at) // 4, at).astype(float)
        width = columns + count
        matrices = []
        for rows in (width, HIDDEN, HIDDEN):
            matrix, numbers = numbers[: rows * HIDDEN].reshape(rows, HIDDEN), numbers[rows * HIDDEN :]
            matrices.append(matrix)
        biases, numbers = numbers[: 3 * HIDDEN].reshape(3, HIDDEN), numbers[3 * HIDDEN :]
        last, bias = numbers[:HIDDEN].reshape(HIDDEN, 1), numbers[HIDDEN : HIDDEN + 1]
        layers = [*zip(matrices, biases, strict=True), (last, bias)]
        return cls(gpus, seen, four[0].astype(float), four[1].astype(float), four[2], four[3], cost, layers)

    def inputs(self, features: NDArray[np.float32], gpus: Sequence[str | None]) -> NDArray[np.float64]:
        """Z-scores, then one column per device."""
        scored = (features[:, : len(self.mean)].astype(float) - self.mean) / self.std
        devices = np.array([[float(gpu == known) for known in self.gpus] for gpu in gpus]).reshape(len(gpus), -1)
        return np.concatenate([scored, devices], axis=1)

    def hidden(self, features: NDArray[np.float32], gpus: Sequence[str | None]) -> NDArray[np.float64]:
        """Activations of the last hidden layer."""
        x = self.inputs(features, gpus)
        for weights, bias in self.layers[:-1]:
            x = np.maximum(x @ weights + bias, 0.0)
        return x

    def predict(self, features: NDArray[np.float32], gpus: Sequence[str | None]) -> NDArray[np.float64]:
        """Costs."""
        weights, bias = self.layers[-1]
        costs: NDArray[np.float64] = (self.hidden(features, gpus) @ weights + bias)[:, 0] * self.cost[1] + self.cost[0]
        return costs

    def outside(self, row: NDArray[np.float32], gpu: str | None, names: Sequence[str]) -> str | None:
        """The first column outside the bounds."""
        for name, value, low, high in zip(names, row, self.low, self.high, strict=False):
            if not low <= value <= high:
                return name
        if gpu is None:
            return None if self.seen[-1] else "gpu"
        return None if gpu in self.gpus and self.seen[self.gpus.index(gpu)] else "gpu"
