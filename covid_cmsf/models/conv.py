"""The (1, k, k) and (k, 1, 1) convolutions of S3D, with faster gradients.

The spatial one runs as a 2D convolution over single frames. In channels-last memory format the reshape copies nothing,
and PyTorch's 2D gradients are faster.

The temporal one computes the gradient of its weights on CPUs as one matrix product per tap of the kernel and clip. For
channels-last clips PyTorch's own weight gradient runs at half that speed or less, and it is wrong on some CPUs: with
PyTorch 2.15, on one with AVX-512 but without instructions for bf16, a kernel of 7 over 6 frames, and in bf16 one of 3
over 2, get values from uninitialized memory. On GPUs and under torch.compile it is the ordinary convolution.

Shapes: B clips, T frames (t after the stride), P pixels per frame, I input and O output channels.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class SpatialConv(nn.Conv3d):
    """Convolve over space only: kernel (1, k, k), no bias, padding of k // 2 pixels."""

    def __init__(self, channels: int, width: int, *, kernel: int, stride: int) -> None:
        pad = kernel // 2
        super().__init__(
            channels, width, (1, kernel, kernel), stride=(1, stride, stride), padding=(0, pad, pad), bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, T, ceil(H / stride), ceil(W / stride))."""
        frames = rearrange(x, "b c t h w -> (b t) c h w")
        frames = nn.functional.conv2d(frames, self.weight.squeeze(2), stride=self.stride[1:], padding=self.padding[1:])
        return rearrange(frames, "(b t) c h w -> b c t h w", t=x.shape[2])


class TemporalConv(nn.Conv3d):
    """Convolve over time only: kernel (k, 1, 1), no bias, padding of k // 2 frames."""

    def __init__(self, channels: int, width: int, *, kernel: int, stride: int) -> None:
        super().__init__(
            channels, width, (kernel, 1, 1), stride=(stride, 1, 1), padding=(kernel // 2, 0, 0), bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, ceil(T / stride), H, W)."""
        if torch.compiler.is_compiling() or not x.is_cpu or not torch.is_grad_enabled():
            return super().forward(x)
        weight = self.weight
        if torch.is_autocast_enabled("cpu"):  # the backward pass runs without autocast
            x, weight = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (x, weight))
        out: Tensor = _TemporalConvFunction.apply(x, weight, self.stride[0], self.padding[0])
        return out


class _TemporalConvFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return nn.functional.conv3d(x, weight, stride=(stride, 1, 1), padding=(padding, 0, 0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last_3d)
        grad_x, grad_weight = None, None
        if ctx.needs_input_grad[0]:
            grad_x = _input_gradient(x, grad, weight, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            dtype = torch.promote_types(weight.dtype, torch.float32)  # bf16 is summed up in fp32, as convolutions do
            grad_weight = weight_gradient(x.to(dtype), grad.to(dtype), weight.shape[2], ctx.stride, ctx.padding)
            grad_weight = grad_weight.to(weight.dtype)
        return grad_x, grad_weight, None, None


def _input_gradient(x: Tensor, grad: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Return PyTorch's own gradient (B, I, T, H, W) with respect to x."""
    geometry = [stride, 1, 1], [padding, 0, 0], [1, 1, 1]  # stride, padding, dilation
    output_mask = [True, False, False]  # x, weight, bias
    grad_x: Tensor
    grad_x, *_ = torch.ops.aten.convolution_backward(grad, x, weight, None, *geometry, False, [0, 0, 0], 1, output_mask)
    return grad_x


def weight_gradient(x: Tensor, grad: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Return the gradient (O, I, kernel, 1, 1) of the weight, given x (B, I, T, H, W) and grad (B, O, t, H, W).

    Output frame t uses input frame `t * stride + j - padding` at tap j, so the gradient of tap j is the sum over t of
    grad[t]^T x[t * stride + j - padding].
    """
    num_inputs, num_outputs = x.shape[2], grad.shape[2]
    x, grad = (clip.permute(0, 2, 3, 4, 1).flatten(2, 3) for clip in (x, grad))  # (B, T, P, I), (B, t, P, O)
    taps = x.new_zeros(kernel, grad.shape[3], x.shape[3])  # (k, O, I)
    for j, tap in enumerate(taps):
        valid = [t for t in range(num_outputs) if 0 <= t * stride + j - padding < num_inputs]  # not padding
        if not valid:
            continue
        start, end = (t * stride + j - padding for t in (valid[0], valid[-1]))
        for grad_clip, clip in zip(grad[:, valid[0] : valid[-1] + 1], x[:, start : end + 1 : stride], strict=True):
            tap.addbmm_(grad_clip.mT, clip)
    return taps.permute(1, 2, 0)[..., None, None]
