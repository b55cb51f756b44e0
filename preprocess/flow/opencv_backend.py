"""OpenCV's TV-L1: the reference implementation, slow."""

import cv2
import numpy as np

from preprocess.flow.base import FlowParameters, check_frames


class OpenCVFlow:
    """TV-L1 by `cv2.optflow`, on as many threads as `cv2.setNumThreads` allows."""

    name = "opencv"

    def __init__(self, parameters: FlowParameters) -> None:
        self.parameters = parameters
        self._size: tuple[int, ...] = ()
        self._solver = self._new_solver()

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) in pixels, x first, of uint8 gray frames (N + 1, H, W)."""
        check_frames(frames)
        if frames.shape[1:] != self._size:
            # After a small frame, OpenCV's solver keeps the smaller number of scales: use a new one per frame size.
            self._size, self._solver = frames.shape[1:], self._new_solver()
        flow = np.empty((len(frames) - 1, 2, *self._size), np.float32)
        for i in range(len(flow)):
            flow[i] = self._solver.calc(frames[i], frames[i + 1], None).transpose(2, 0, 1)
        return flow

    def _new_solver(self) -> "cv2.optflow.DualTVL1OpticalFlow":
        solver = cv2.optflow.DualTVL1OpticalFlow_create()
        solver.setTau(self.parameters.tau)
        solver.setLambda(self.parameters.lambda_)
        solver.setTheta(self.parameters.theta)
        solver.setScalesNumber(self.parameters.nscales)
        solver.setWarpingsNumber(self.parameters.warps)
        solver.setEpsilon(self.parameters.epsilon)
        solver.setInnerIterations(self.parameters.inner_iterations)
        solver.setOuterIterations(self.parameters.outer_iterations)
        solver.setScaleStep(self.parameters.scale_step)
        solver.setGamma(self.parameters.gamma)
        solver.setMedianFiltering(self.parameters.median_filtering)
        return solver
