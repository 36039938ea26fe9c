"""The formulas of codistillation in NumPy, from the paper."""

import numpy as np


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def targets(z, distance, activation="softmax", temperature=1.0):
    """What is averaged over teachers, of one teacher's logits."""
    if distance.startswith("mean_squared"):
        return z
    squash = {"softmax": softmax, "sigmoid": sigmoid}[activation]
    return squash(z / temperature)


def distance(q, z, name, activation="softmax", temperature=1.0):
    """Psi of targets `q` and the student's logits `z`, per example."""
    if name.startswith("mean_squared"):
        return ((z - q) ** 2).mean(axis=-1)
    if activation == "softmax":
        p = softmax(z / temperature)
        cross, entropy = -(q * np.log(p)).sum(-1), -(q * np.log(q)).sum(-1)
    else:
        p = sigmoid(z / temperature)
        cross = -(q * np.log(p) + (1 - q) * np.log(1 - p)).mean(-1)
        entropy = -(q * np.log(q) + (1 - q) * np.log(1 - q)).mean(-1)
    if name == "kl_divergence":
        cross = cross - entropy
    return temperature**2 * cross


def gradient(q, z, name, activation="softmax", temperature=1.0):
    """The gradient of `distance` by the logits, per example."""
    classes = z.shape[-1]
    if name.startswith("mean_squared"):
        return 2 * (z - q) / classes
    if activation == "softmax":
        return temperature * (softmax(z / temperature) - q)
    return temperature * (sigmoid(z / temperature) - q) / classes
