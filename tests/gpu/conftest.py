"""The clip store and the runs of the training tests."""

from tests.training.conftest import _toy, clips, flow_weights, rgb_weights

__all__ = ["_toy", "clips", "flow_weights", "rgb_weights"]
