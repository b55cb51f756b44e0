"""TV-L1 on one pyramid level: warp, then median filter and iterations until the flow converges, as in OpenCV.

The scheme is that of Sanchez Perez et al. (IPOL 2013); the stopping rule and the median between iterations follow
OpenCV. Planes as in `iteration.py`; docs/concepts/flow-kernels.md has an overview.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from preprocess.flow.numba_kernels import JIT_OPTIONS, source_checksum
from preprocess.flow.numba_kernels.iteration import iterate_, iterate_illumination_
from preprocess.flow.numba_kernels.iteration_fast import iterate_fast_
from preprocess.flow.numba_kernels.median import median_
from preprocess.flow.numba_kernels.warping import pack_, warp_


def _compile_solver(sources: int) -> Callable[..., int]:
    """Return `solve_`, whose cached compilation is valid for this checksum only: numba's cache compares closures."""

    @njit(**JIT_OPTIONS, cache=True)
    def solve_(
        first: np.ndarray,
        second: np.ndarray,
        packed: np.ndarray,
        u: tuple[np.ndarray, ...],
        filtered: np.ndarray,
        p: tuple[np.ndarray, ...],
        data: tuple[np.ndarray, ...],
        inside: np.ndarray,
        stride: int,
        bound: float,
        theta: float,
        step: float,
        gamma: float,
        epsilon: float,
        warps: int,
        outer: int,
        inner: int,
        median: int,
        exact: bool,
    ) -> int:
        """Refine the flow `u` from image `first` to `second` (H, W), in place; `p` is set to 0 first.

        `packed`, `filtered` and `data` are scratch memory. Iterations stop when the sum of squared changes is at most
        `epsilon`. With `exact`, every operation is rounded as in OpenCV.
        """
        height, width = first.shape
        pack_(second, packed)
        for k in range(len(p)):
            p[k][:] = np.float32(0)
        for _ in range(warps):
            warp_(first, packed, u, data, stride)
            error = np.float32(np.inf)
            for _ in range(outer):
                if not error > epsilon:
                    break
                if median > 1:
                    for k in range(2):
                        median_(u[k], filtered, height, width, stride, median)
                        u[k][:] = filtered
                for _ in range(inner):
                    if gamma == 0 and not exact:
                        error = iterate_fast_(u, p, data, inside, height, stride, bound, theta, step)
                    elif gamma == 0:
                        error = iterate_(u, p, data, inside, height, stride, bound, theta, step)
                    else:
                        error = iterate_illumination_(u, p, data, height, width, stride, bound, theta, step, gamma)
                    if not error > epsilon:
                        break
        return sources

    return solve_


solve_ = _compile_solver(source_checksum())
