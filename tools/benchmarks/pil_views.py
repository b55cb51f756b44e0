"""The peer of the benchmark `views`: CoCLR's pretraining pipeline as its code describes it, frame by frame with PIL."""

import io
import random
from collections.abc import Callable, Sequence

import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageFilter
from torch import Tensor

SIZE, LENGTH = 128, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def decode(jpegs: Sequence[bytes], start: int) -> list[Image.Image]:
    """One clip of frames."""
    return [Image.open(io.BytesIO(data)).convert("RGB") for data in jpegs[start : start + LENGTH]]


def random_resized_crop(frames: list[Image.Image], rng: random.Random) -> list[Image.Image]:
    """One attempt at a crop; if it does not fit, the whole frame is squashed. Bicubic."""
    width, height = frames[0].size
    area, ratio = rng.uniform(0.2, 1) * width * height, rng.uniform(3 / 4, 4 / 3)
    w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
    if rng.random() < 0.5:
        w, h = h, w
    if w > width or h > height:
        return [frame.resize((SIZE, SIZE), Image.Resampling.BICUBIC) for frame in frames]
    x, y = rng.randint(0, width - w), rng.randint(0, height - h)
    crops = (frame.crop((x, y, x + w, y + h)) for frame in frames)
    return [frame.resize((SIZE, SIZE), Image.Resampling.BICUBIC) for frame in crops]


def color_jitter(frames: list[Image.Image], rng: random.Random) -> list[Image.Image]:
    """Brightness, contrast, saturation and hue in random order, the same for all frames."""
    b, c, s = (rng.uniform(0.6, 1.4) for _ in range(3))
    hue = rng.uniform(-0.1, 0.1)
    operations: list[Callable[[Image.Image], Image.Image]] = [
        lambda frame: TF.adjust_brightness(frame, b),
        lambda frame: TF.adjust_contrast(frame, c),
        lambda frame: TF.adjust_saturation(frame, s),
        lambda frame: TF.adjust_hue(frame, hue),
    ]
    rng.shuffle(operations)
    for operation in operations:
        frames = [operation(frame) for frame in frames]
    return frames


def random_gray(frames: list[Image.Image], rng: random.Random) -> list[Image.Image]:
    """One channel, three times."""
    return [Image.merge("RGB", [frame.getchannel(rng.randrange(3))] * 3) for frame in frames]


def make_view(frames: list[Image.Image], strong: bool, rng: random.Random) -> Tensor:
    """(3, T, H, W), normalized."""
    frames = random_resized_crop(frames, rng)
    if strong:
        if rng.random() < 0.8:
            frames = color_jitter(frames, rng)
        if rng.random() < 0.2:
            frames = random_gray(frames, rng)
        if rng.random() < 0.5:
            radius = rng.uniform(0.1, 2.0)
            frames = [frame.filter(ImageFilter.GaussianBlur(radius)) for frame in frames]
    if rng.random() < 0.5:
        frames = [frame.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for frame in frames]
    clip: Tensor = TF.normalize(torch.stack([TF.to_tensor(frame) for frame in frames]), MEAN, STD)
    return clip.transpose(0, 1)


def two_views(first: list[Image.Image], second: list[Image.Image], rng: random.Random) -> tuple[Tensor, Tensor]:
    """CoCLR's mixture of one-clip and two-clip pairs."""
    if rng.random() < 0.5:
        frames, strong = (first if rng.random() < 0.5 else second), rng.random() < 0.5
        return make_view(frames, strong, rng), make_view(frames, not strong, rng)
    return make_view(first, rng.random() < 0.3, rng), make_view(second, rng.random() < 0.3, rng)
