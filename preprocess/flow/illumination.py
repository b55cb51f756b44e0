"""One iteration of TV-L1 with a third plane for changes of illumination (OpenCV's gamma > 0); plain, not fast."""
# planes as in `iteration.py`

import numpy as np
from numba import njit

from preprocess.flow.iteration import FLT_EPSILON
from preprocess.flow.options import COMPILE

EPSILON = np.float32(FLT_EPSILON)


@njit(**COMPILE)
def iterate_light_(
    u: tuple[np.ndarray, ...],
    p: tuple[np.ndarray, ...],
    data: tuple[np.ndarray, ...],
    height: int,
    width: int,
    stride: int,
    bound: float,
    theta: float,
    step: float,
    gamma: float,
) -> np.float32:
    """`iterate_` for three planes; the data term's derivative with respect to the third is `gamma` everywhere."""
    error = np.float32(0)
    for y in range(height):
        for x in range(width):
            i = y * stride + x
            gx, gy, square, rho = data[0][i], data[1][i], data[2][i], data[3][i]
            residual = rho + (gx * u[0][i] + gy * u[1][i]) + gamma * u[2][i]
            shift = np.float32(0)
            if residual < -bound * square:
                shift = np.float32(bound)
            elif residual > bound * square:
                shift = np.float32(-bound)
            elif square > EPSILON:
                shift = np.float32(-residual / square)
            slope = (gx, gy, gamma)
            for k in range(3):
                px, py = p[2 * k], p[2 * k + 1]
                here = i + stride
                if x == 0:
                    divergence = (px[here] + py[here]) - py[i]
                else:
                    divergence = (px[here] - px[here - 1]) + (py[here] - py[i])
                old = u[k][i]
                u[k][i] = (old + shift * slope[k]) + theta * divergence
                error += (u[k][i] - old) * (u[k][i] - old)
    for y in range(height):
        for x in range(width):
            i = y * stride + x
            for k in range(3):
                dx = u[k][i + 1] - u[k][i] if x < width - 1 else np.float32(0)
                dy = u[k][i + stride] - u[k][i] if y < height - 1 else np.float32(0)
                length = np.float32(np.sqrt(np.float64(dx) * np.float64(dx) + np.float64(dy) * np.float64(dy)))
                shrink = np.float32(1) + step * length
                px, py = p[2 * k], p[2 * k + 1]
                px[i + stride] = (px[i + stride] + step * dx) / shrink
                py[i + stride] = (py[i + stride] + step * dy) / shrink
    return error
