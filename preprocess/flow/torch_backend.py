"""TV-L1 for batches of pairs on any PyTorch device: the default on a GPU.

Shapes: B pairs per batch; K planes: flow x, flow y and, if gamma > 0, illumination; H x W pixels.
"""

from collections.abc import Iterator

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from preprocess.flow.base import FlowParameters, check_frames, level_sizes

FLT_EPSILON = 1.1920929e-07
BATCH_PIXELS = {"cpu": 2**17, "cuda": 2**23}  # limits the memory: about 200 bytes per pixel
CONVERGENCE_CHECK_INTERVAL = {"cpu": 1, "cuda": 5}  # iterations between two checks, which synchronize a GPU


class TorchFlow:
    """TV-L1 over batches of pairs; the flow of a pair does not depend on the others in its batch."""

    name = "torch"

    def __init__(self, parameters: FlowParameters, device: str | None = None) -> None:
        self.parameters = parameters
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @torch.inference_mode()
    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) in pixels, x first, of uint8 gray frames (N + 1, H, W)."""
        check_frames(frames)
        pairs, (height, width) = len(frames) - 1, frames.shape[1:]
        flow = np.empty((pairs, 2, height, width), np.float32)
        batch = max(1, BATCH_PIXELS.get(self.device.type, 2**20) // (height * width))
        for start in range(0, pairs, batch):
            stop = min(start + batch, pairs)
            flow[start:stop] = self._solve(frames[start : stop + 1]).cpu().numpy()
        return flow

    def _solve(self, frames: np.ndarray) -> Tensor:
        """Return float32 flow (B, 2, H, W) of uint8 frames (B + 1, H, W)."""
        config = self.parameters
        planes = 3 if config.gamma else 2
        levels = list(self._pyramid(frames))
        u = torch.zeros(len(frames) - 1, planes, *levels[-1].shape[1:], device=self.device)
        for images in reversed(levels):
            if u.shape[2:] != images.shape[1:]:
                u = functional.interpolate(u, size=images.shape[1:], mode="bilinear", align_corners=False)
                u[:, :2] *= 1 / config.scale_step
            u = self._solve_level(images[:-1], images[1:], u)
        return u[:, :2]

    def _pyramid(self, frames: np.ndarray) -> Iterator[Tensor]:
        """Yield the frames (B + 1, H, W) as float32 in 0..255 at every level, the largest first."""
        step = self.parameters.scale_step
        images = [frame.astype(np.float32) for frame in frames]
        for level, _ in enumerate(level_sizes(frames.shape[1], frames.shape[2], self.parameters)):
            if level > 0:
                images = [cv2.resize(image, None, fx=step, fy=step) for image in images]  # bilinear
            yield torch.from_numpy(np.stack(images)).to(self.device)

    def _solve_level(self, first: Tensor, second: Tensor, u: Tensor) -> Tensor:
        """Refine `u` (B, K, H, W), the flow from images `first` to `second` (B, H, W)."""
        config = self.parameters
        p = u.new_zeros(*u.shape[:2], 2, *u.shape[2:])  # dual: (B, K, x and y, H, W)
        target = torch.stack([second, *central_differences(second)], dim=1)
        for _ in range(config.warps):
            gradient, inverse, rho = linearize(first, target, u, config.gamma)
            active = torch.ones(len(u), dtype=torch.bool, device=u.device)
            for _ in range(config.outer_iterations):
                if config.median_filtering > 1:
                    filtered = torch.cat([median(u[:, :2], config.median_filtering), u[:, 2:]], dim=1)
                    u = _keep_inactive(active, filtered, u)
                u, p, active = self._iterate(u, p, active, gradient, inverse, rho)
                if not active.any():
                    break
        return u

    def _iterate(
        self, u: Tensor, p: Tensor, active: Tensor, gradient: Tensor, inverse: Tensor, rho: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run up to `inner_iterations` iterations; a pair that is no longer `active` (B,) keeps its values."""
        config = self.parameters
        bound, step = config.lambda_ * config.theta, config.tau / config.theta
        epsilon = config.epsilon**2 * u.shape[-2] * u.shape[-1]
        check_interval = CONVERGENCE_CHECK_INTERVAL.get(u.device.type, 5)
        exact = torch.float32 if u.device.type == "mps" else torch.float64  # MPS has no float64
        for iteration in range(config.inner_iterations):
            residual = ((rho + (gradient * u).sum(dim=1)) * inverse).clamp(-bound, bound)
            change = config.theta * divergence(p) - residual[:, None] * gradient
            new_u = u + change
            slope = forward_differences(new_u)
            norm = slope.square().sum(dim=2, keepdim=True).sqrt()
            new_p = (p + step * slope) / (1 + step * norm)
            u, p = _keep_inactive(active, new_u, u), _keep_inactive(active, new_p, p)
            active = active & (change.square().sum(dim=(1, 2, 3), dtype=exact) > epsilon)
            if (iteration + 1) % check_interval == 0 and not active.any():
                break
        return u, p, active


def _keep_inactive(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.view(-1, *[1] * (new.ndim - 1)), new, old)


def central_differences(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return d/dx and d/dy of an image (B, H, W) with replicated borders."""
    padded = functional.pad(image[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    return 0.5 * (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]), 0.5 * (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1])


def forward_differences(u: Tensor) -> Tensor:
    """Return the gradient (B, K, x and y, H, W) of (B, K, H, W); 0 in the last column or row."""
    slope = u.new_zeros(*u.shape[:2], 2, *u.shape[2:])
    torch.sub(u[..., :, 1:], u[..., :, :-1], out=slope[:, :, 0, :, :-1])
    torch.sub(u[..., 1:, :], u[..., :-1, :], out=slope[:, :, 1, :-1, :])
    return slope


def divergence(p: Tensor) -> Tensor:
    """Return the divergence (B, K, H, W) of (B, K, x and y, H, W): the negative adjoint of `forward_differences`."""
    result = p[:, :, 0] + p[:, :, 1]
    result[..., :, 1:] -= p[:, :, 0, :, :-1]
    result[..., 1:, :] -= p[:, :, 1, :-1, :]
    return result


def linearize(first: Tensor, target: Tensor, u: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Linearize the data term around `u` as rho + gradient . u; return gradient (B, K, H, W), 1 / |g|^2, rho (B, H, W).

    `target` (B, 3, H, W) is the second image with its derivatives. It is sampled with Keys' cubic kernel, a = -0.75,
    and is 0 outside the image, as in OpenCV's remap.
    """
    height, width = first.shape[1:]
    x = torch.arange(width, device=u.device) + u[:, 0]
    y = torch.arange(height, device=u.device)[:, None] + u[:, 1]
    grid = torch.stack([x * (2 / (width - 1)) - 1, y * (2 / (height - 1)) - 1], dim=-1)
    warped = functional.grid_sample(target, grid, mode="bicubic", padding_mode="zeros", align_corners=True)
    gradient = warped[:, 1:]
    inverse = 1 / gradient.square().sum(dim=1).clamp_min(FLT_EPSILON)
    rho = warped[:, 0] - (gradient * u[:, :2]).sum(dim=1) - first
    if u.shape[1] == 3:
        gradient = torch.cat([gradient, torch.full_like(u[:, 2:], gamma)], dim=1)
    return gradient, inverse, rho


def median(u: Tensor, size: int) -> Tensor:
    """Return the `size` x `size` median (3 or 5) of every plane of (B, K, H, W), with replicated borders."""
    height, width = u.shape[2:]
    radius = size // 2
    padded = functional.pad(u, (radius,) * 4, mode="replicate")
    columns = _sort([padded[:, :, dy : dy + height] for dy in range(size)])
    pairs = _merge([c[..., :-1] for c in columns], [c[..., 1:] for c in columns])
    last = [c[..., size - 1 :] for c in columns]
    if size == 3:
        return _merge([c[..., :width] for c in pairs], last)[4]
    four = _merge([c[..., :width] for c in pairs], [c[..., 2 : 2 + width] for c in pairs])
    return _merge(four[7:13], last)[5]  # the 7 lowest and 7 highest of 20 values can't be the median of 25


def _sort(values: list[Tensor]) -> list[Tensor]:
    """Sort tensors elementwise, by merging."""
    half = len(values) // 2
    return _merge(_sort(values[:half]), _sort(values[half:])) if half else values


def _merge(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    """Merge two elementwise sorted lists of tensors (Batcher's odd-even merge)."""
    if not a or not b:
        return a or b
    if len(a) == len(b) == 1:
        return [torch.minimum(a[0], b[0]), torch.maximum(a[0], b[0])]
    even, odd = _merge(a[::2], b[::2]), _merge(a[1::2], b[1::2])
    merged = even[:1]
    for x, y in zip(even[1:], odd, strict=False):
        merged += [torch.minimum(x, y), torch.maximum(x, y)]
    return merged + even[1 + len(odd) :] + odd[len(even) - 1 :]
