"""The compiled kernels of TV-L1 against slow, obvious twins."""
# H W pixels, n row stride of a plane

import cv2
import numpy as np
import pytest

from preprocess.flow.numba_backend import Level
from preprocess.flow.numba_kernels import iteration, iteration_fast, median, warping

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

BOUND, THETA, STEP, GAMMA = (np.float32(value) for value in (0.045, 0.3, 0.25 / 0.3, 0.7))


def texture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(H, W) uint8: noise at three scales, smooth enough to be followed."""
    noise = np.random.default_rng(seed).normal(size=(3, height, width)).astype(np.float32)
    layers = [cv2.GaussianBlur(layer, (0, 0), sigma) * sigma for layer, sigma in zip(noise, (1.5, 3, 8), strict=True)]
    image = np.sum(layers, axis=0)
    gray: np.ndarray = cv2.normalize(image, None, 20, 235, cv2.NORM_MINMAX)
    return gray.astype(np.uint8)


def filled_level(height: int, width: int, planes: int) -> Level:
    """A level with random flow, duals (0 where TV-L1 keeps them 0) and data."""
    random = np.random.default_rng(height * width)
    level = Level.empty(height, width)
    for k in range(planes):
        level.image(level.u[k])[:] = random.normal(size=(height, width))
        level.image(level.p[2 * k][level.stride :])[:, :-1] = random.uniform(-0.7, 0.7, (height, width - 1))
        level.image(level.p[2 * k + 1][level.stride :])[:-1] = random.uniform(-0.7, 0.7, (height - 1, width))
    gx, gy, square, rho = (level.image(plane) for plane in level.data)
    gx[:], gy[:], rho[:] = random.normal(size=(3, height, width))
    square[:] = gx * gx + gy * gy
    return level


def slow_iteration(level: Level, planes: int) -> tuple[np.ndarray, np.ndarray, float]:
    """u (K, H, W), p (K, 2, H, W) and the squared change after one iteration, pixel by pixel, in float64."""
    height, width = level.height, level.width
    u = np.stack([level.image(level.u[k]) for k in range(planes)]).astype(np.float64)
    p = np.stack([level.image(plane[level.stride :]) for plane in level.p[: 2 * planes]]).astype(np.float64)
    p = p.reshape(planes, 2, height, width)
    gx, gy, square, rho = (level.image(plane).astype(np.float64) for plane in level.data)
    slopes = [gx, gy, np.full_like(gx, GAMMA)]
    new_u, error = u.copy(), 0.0
    for y in range(height):
        for x in range(width):
            residual = rho[y, x] + sum(slopes[k][y, x] * u[k, y, x] for k in range(planes))
            residual = min(max(residual / square[y, x], -float(BOUND)), float(BOUND))
            for k in range(planes):
                divergence = p[k, 0, y, x] + p[k, 1, y, x]
                divergence -= p[k, 0, y, x - 1] if x > 0 else 0
                divergence -= p[k, 1, y - 1, x] if y > 0 else 0
                new_u[k, y, x] += THETA * divergence - residual * slopes[k][y, x]
                error += (new_u[k, y, x] - u[k, y, x]) ** 2
    new_p = p.copy()
    for k, y, x in np.ndindex(planes, height, width):
        dx = new_u[k, y, x + 1] - new_u[k, y, x] if x + 1 < width else 0.0
        dy = new_u[k, y + 1, x] - new_u[k, y, x] if y + 1 < height else 0.0
        new_p[k, :, y, x] = (p[k, :, y, x] + STEP * np.array([dx, dy])) / (1 + STEP * np.hypot(dx, dy))
    return new_u, new_p, error


@pytest.mark.parametrize("kernel", ["exact", "fast", "illumination"])
@pytest.mark.parametrize(("height", "width"), [(3, 3), (7, 16), (12, 17), (5, 31)])
def test_iteration_is_its_slow_twin(height: int, width: int, kernel: str) -> None:
    planes = 3 if kernel == "illumination" else 2
    level = filled_level(height, width, planes)
    u, p, error = slow_iteration(level, planes)
    if planes == 2:
        iterate = iteration.iterate_ if kernel == "exact" else iteration_fast.iterate_fast_
        result = iterate(level.u, level.p, level.data, level.inside, height, level.stride, BOUND, THETA, STEP)
    else:
        result = iteration.iterate_illumination_(
            level.u, level.p, level.data, height, width, level.stride, BOUND, THETA, STEP, GAMMA
        )
    assert result == pytest.approx(error, rel=1e-5)
    for k in range(planes):
        np.testing.assert_allclose(level.image(level.u[k]), u[k], atol=2e-6)
        for direction in range(2):
            dual = level.p[2 * k + direction]
            np.testing.assert_allclose(level.image(dual[level.stride :]), p[k, direction], atol=2e-6)


def test_iterations_leave_the_space_between_rows_empty() -> None:
    level = filled_level(9, 13, 2)
    for _ in range(3):
        iteration.iterate_(level.u, level.p, level.data, level.inside, 9, level.stride, BOUND, THETA, STEP)
    for plane in level.u:
        assert not plane[: 9 * 16].reshape(9, 16)[:, 13:].any()
    for plane in level.p:
        assert not plane[:16].any()
        assert not plane[16 : 10 * 16].reshape(9, 16)[:, 13:].any()


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(("height", "width"), [(3, 3), (4, 5), (20, 37), (6, 1300)])
def test_median_is_opencvs_and_numpys(height: int, width: int, size: int) -> None:
    level = filled_level(height, width, 2)
    source = level.image(level.u[0])
    median.median_(level.u[0], level.filtered, height, width, level.stride, size)
    result = level.image(level.filtered)
    padded = np.pad(source, size // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size))
    assert np.array_equal(result, np.median(windows, axis=(2, 3)))
    assert np.array_equal(result, cv2.medianBlur(np.ascontiguousarray(source), size))


@pytest.mark.parametrize("size", [3, 5])
def test_median_of_torch_is_opencvs(size: int) -> None:
    import torch

    from preprocess.flow import torch_backend

    planes = np.random.default_rng(0).normal(size=(2, 2, 11, 14)).astype(np.float32)
    expected = [[cv2.medianBlur(plane, size) for plane in pair] for pair in planes]
    assert np.array_equal(torch_backend.median(torch.from_numpy(planes), size), expected)


def test_warp_is_opencvs_to_the_last_bit() -> None:
    height, width = 33, 45
    first, second = (texture(height, width, seed).astype(np.float32) for seed in (1, 2))
    level = filled_level(height, width, 2)
    u1, u2 = (level.image(level.u[k]) * np.float32(6) for k in range(2))
    level.image(level.u[0])[:], level.image(level.u[1])[:] = u1, u2
    warping.pack_(second, level.packed)
    warping.warp_(first, level.packed, level.u, level.data, level.stride)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    images = level.packed[warping.PAD : -warping.PAD, warping.PAD : -warping.PAD]
    warped, gx, gy, _ = np.moveaxis(cv2.remap(images.copy(), x + u1, y + u2, cv2.INTER_CUBIC), -1, 0)
    assert np.array_equal(level.image(level.data[0]), gx)
    assert np.array_equal(level.image(level.data[1]), gy)
    assert np.array_equal(level.image(level.data[2]), gx * gx + gy * gy)
    assert np.array_equal(level.image(level.data[3]), warped - gx * u1 - gy * u2 - first)


def slow_cubic(image: np.ndarray, x: float, y: float) -> float:
    """Keys' cubic interpolation, a = -0.75, of `image` (H, W), which is 0 outside."""

    def weight(distance: float) -> float:
        a, d = -0.75, abs(distance)
        if d >= 2:
            return 0.0
        return ((a + 2) * d - (a + 3)) * d * d + 1 if d <= 1 else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    total = 0.0
    for row in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
        for column in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                total += weight(x - column) * weight(y - row) * float(image[row, column])
    return total


@pytest.mark.parametrize("size", [0.0, 1.7, 40.0, 1e9])
def test_warp_is_its_slow_twin(size: float) -> None:
    height, width = 9, 13
    first, second = (texture(height, width, seed).astype(np.float32) for seed in (1, 2))
    level = filled_level(height, width, 2)
    for k in range(2):
        level.image(level.u[k])[:] *= np.float32(size)
    u1, u2 = (level.image(level.u[k]) for k in range(2))
    warping.pack_(second, level.packed)
    warping.warp_(first, level.packed, level.u, level.data, level.stride)
    padded = np.pad(second, 1, mode="edge")
    images: list[np.ndarray] = [
        second,
        (padded[1:-1, 2:] - padded[1:-1, :-2]) / 2,
        (padded[2:, 1:-1] - padded[:-2, 1:-1]) / 2,
    ]
    gx, gy, square, rho = (level.image(plane) for plane in level.data)
    for y, x in np.ndindex(height, width):
        warped, dx, dy = (slow_cubic(image, x + float(u1[y, x]), y + float(u2[y, x])) for image in images)
        assert gx[y, x] == pytest.approx(dx, abs=1e-3)
        assert gy[y, x] == pytest.approx(dy, abs=1e-3)
        residual = warped - gx[y, x] * u1[y, x] - gy[y, x] * u2[y, x] - first[y, x]
        assert rho[y, x] == pytest.approx(residual, abs=2e-3)
        assert square[y, x] == pytest.approx(gx[y, x] ** 2 + gy[y, x] ** 2)
