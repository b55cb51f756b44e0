"""The sound of a clip: what its objects do can be heard, over the noise of the place.

The tone of each body is higher where the body is higher, and as loud as it is fast; another tone follows its size; it
clicks as it turns. So the sound of a class has a rhythm and a contour of its own, in step with the picture. What
misleads is independent of the class: the clip's pitch, and the group's timbre and background noise, which grows with
the difficulty. The camera and the moving patches are not heard.
Shapes: B bodies, T frames, S samples.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
RATE = 16_000  # samples per second
HIGHER = 1.4  # octaves per half frame height
LARGER = 1.5  # octaves per unit of scale, downward
FULL_SPEED, FULL_GROWTH = 2.0, 3.0  # half frame heights, and scale, per second at which a tone has its full loudness
CLICK_ANGLE = np.pi / 12
CLICK_SECONDS = 0.006
NUM_OVERTONES = 4


def make_sound(
    bodies: Array, *, fps: int, clip: np.random.Generator, place: np.random.Generator, difficulty: float
) -> NDArray[np.int16]:
    """Return the sound (S,) of poses (B, T, 4), as long as the video; `clip` and `place` draw what misleads."""
    num_frames = bodies.shape[1]
    num_samples = round(num_frames * RATE / fps)
    timbre = place.dirichlet(np.ones(NUM_OVERTONES)) + np.eye(NUM_OVERTONES)[0]
    noise = place_noise(place, num_samples) * (0.02 + 0.18 * difficulty)
    pitch = 330 * 2 ** (clip.uniform(-0.5, 0.5) * (0.4 + difficulty))  # Hz
    sound = sum((body_sound(body, fps, num_samples, pitch=pitch, timbre=timbre) for body in bodies), start=noise)
    samples: NDArray[np.int16] = np.rint(32_767 * np.tanh(sound)).astype(np.int16)
    return samples


def body_sound(poses: Array, fps: int, num_samples: int, *, pitch: float, timbre: Array) -> Array:
    """Return the sound (S,) of a body with poses (T, 4): x, y, scale, angle."""
    x, y, scale, angle = poses.T
    speed = np.hypot(np.gradient(x), np.gradient(y)) * fps
    growth = np.abs(np.gradient(scale)) * fps

    def over_time(values: Array) -> Array:
        return np.interp(np.arange(num_samples) / RATE, np.arange(len(values)) / fps, values)

    moving = tone(over_time(pitch * 2 ** (-HIGHER * y)), timbre) * over_time(np.minimum(speed / FULL_SPEED, 1))
    growing = tone(over_time(2 * pitch * 2 ** (-LARGER * (scale - 1))), timbre)
    growing *= over_time(np.minimum(growth / FULL_GROWTH, 1))
    return 0.25 * moving + 0.25 * growing + 0.5 * clicks(over_time(angle))


def tone(hertz: Array, timbre: Array) -> Array:
    """Return a tone (S,) whose frequency is `hertz` (S,), with overtones of these strengths."""
    phase = 2 * np.pi * np.cumsum(hertz) / RATE
    return np.asarray(sum(strength * np.sin(n * phase) for n, strength in enumerate(timbre, start=1)))


def clicks(angle: Array) -> Array:
    """Return a short decaying click (S,) whenever the angle (S,) passes a multiple of `CLICK_ANGLE`."""
    steps = np.abs(np.diff(np.floor(angle / CLICK_ANGLE), prepend=np.floor(angle[0] / CLICK_ANGLE)))
    seconds = np.arange(round(5 * CLICK_SECONDS * RATE)) / RATE
    click = np.exp(-seconds / CLICK_SECONDS) * np.sin(2 * np.pi * 3500 * seconds)
    return np.convolve(np.minimum(steps, 1), click)[: len(angle)]


def place_noise(rng: np.random.Generator, num_samples: int) -> Array:
    """Draw noise (S,) in a band of the place's own, and its hum; the deviation is 1."""
    center, octaves, hum = 2 ** rng.uniform(8, 12), rng.uniform(0.3, 1.5), rng.uniform(80, 240)
    hertz = np.fft.rfftfreq(num_samples, 1 / RATE)
    band = np.exp(-0.5 * (np.log2(np.maximum(hertz, 1) / center) / octaves) ** 2)
    noise = np.fft.irfft(band * np.fft.rfft(rng.normal(size=num_samples)), num_samples)
    humming = np.sin(2 * np.pi * hum * np.arange(num_samples) / RATE + rng.uniform(0, 2 * np.pi))
    both = noise / noise.std() + rng.uniform(0, 1) * humming
    return np.asarray(both / both.std())
