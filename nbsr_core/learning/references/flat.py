"""The flat network that most references start from: a backbone, then a head, by these names."""

from __future__ import annotations

from torch import nn


def flat_network(backbone: nn.Module, head: nn.Module) -> nn.Sequential:
    """Head after backbone; by these names weight decay and freezing find the backbone, and detectors the features."""
    network = nn.Sequential()
    network.add_module("backbone", backbone)
    network.add_module("head", head)
    return network
