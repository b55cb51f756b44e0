"""The sound of video files as a modality: log-mel spectrograms, a piece per frame."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from covid_cmsf.clips.audio_info import AudioInfo
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.maintenance import check_store
from covid_cmsf.clips.records import StoreInfo
from covid_cmsf.clips.store import ClipStore
from preprocess.audio import RATE, WINDOW, SoundReader, log_mel, mel_filters, quantize
from preprocess.config import make_store_info
from preprocess.convert import ClipMetadata, StageError, convert
from tests.factories import moving_square, write_sound_video, write_video
from tests.preprocess.commands import run_cli

INFO = AudioInfo(version="")


def chirp(seconds: float, low: float, high: float, *, rate: int = RATE) -> NDArray[np.float32]:
    """Return a sine whose frequency goes from `low` to `high` Hz, evenly in Hz."""
    times = np.arange(round(seconds * rate)) / rate
    tone: NDArray[np.float64] = np.sin(2 * np.pi * (low * times + (high - low) * times**2 / (2 * seconds)))
    return (tone / 2).astype(np.float32)


def bursts(times: list[float], seconds: float) -> NDArray[np.float32]:
    """Return silence with 20 ms of a loud tone at 2 kHz around each of the times."""
    at = np.arange(round(seconds * RATE)) / RATE
    loud = np.any([np.abs(at - time) < 0.01 for time in times], axis=0)
    sound: NDArray[np.float32] = (0.8 * loud * np.sin(2 * np.pi * 2000 * at)).astype(np.float32)
    return sound


def convert_audio(path: Path, **changes: object) -> tuple[ClipMetadata, NDArray[np.uint8]]:
    """Return the record and the stored pictures (T, mels, columns)."""
    cut = changes.pop("cut", (0.0, float("inf")))
    values: dict[str, object] = {"short_edge": 0, "max_frames": 0, "quality": 10, "flow_backend": "dis"}
    values |= {"flow_bound": "20", "flow_size": "stored", "flow_parameters": "", "software": "", **changes}
    info = make_store_info(Path("none"), modalities="rgb,audio", **values)  # type: ignore[arg-type]
    targets = {name: path.with_name(f"{path.stem}-{name}.mp4") for name in info.modalities}
    metadata = convert(path, targets, info, decoder="av", flow=None, cut=cut)  # type: ignore[arg-type]
    with open_video(targets["audio"]) as video:
        return metadata, video.read_luma(range(metadata.num_frames))


def loud_times(pictures: NDArray[np.uint8], fps: float) -> list[float]:
    """Return the middle of each run of loud columns, in seconds since the first frame."""
    joined = pictures.transpose(1, 0, 2).reshape(pictures.shape[1], -1)
    loud = joined.max(0) > 230  # above -10 dB
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(int)))
    return [float(first + last) / 2 / (INFO.columns * fps) for first, last in edges.reshape(-1, 2)]


def slow_log_mel(samples: NDArray[np.float32], *, num_mels: int, low_hz: float, high_hz: float) -> list[float]:
    """Return the decibels of one window by the definition: a sum per frequency, a loop per band and frequency."""

    def to_mel(hertz: float) -> float:
        return float(2595 * np.log10(1 + hertz / 700))

    shape = [0.5 - 0.5 * np.cos(2 * np.pi * n / WINDOW) for n in range(WINDOW)]
    powers = []
    for bin_number in range(257):
        hertz = bin_number * RATE / 512
        turns = np.exp(-2j * np.pi * hertz * np.arange(WINDOW) / RATE)
        powers.append(abs((samples * shape * turns).sum() / (sum(shape) / 2)) ** 2)
    step = (to_mel(high_hz) - to_mel(low_hz)) / (num_mels + 1)
    decibels = []
    for band in range(num_mels):
        edges = [700 * (10 ** ((to_mel(low_hz) + (band + i) * step) / 2595) - 1) for i in range(3)]
        total = 0.0
        for bin_number, power in enumerate(powers):
            hertz = bin_number * RATE / 512
            if edges[0] < hertz <= edges[1]:
                total += power * (hertz - edges[0]) / (edges[1] - edges[0])
            elif edges[1] < hertz < edges[2]:
                total += power * (edges[2] - hertz) / (edges[2] - edges[1])
        decibels.append(10 * np.log10(max(total, 1e-20)))
    return decibels


def test_the_spectrogram_equals_loops_over_bands_and_frequencies() -> None:
    rng = np.random.default_rng(0)
    sound = chirp(0.2, 200, 7000) + 0.01 * rng.normal(size=3200).astype(np.float32)
    windows = np.stack([sound[start : start + WINDOW] for start in (0, 1000, 2700)]).astype(np.float32)
    bands = {"num_mels": 12, "low_hz": 60.0, "high_hz": 7600.0}
    found = log_mel(windows, mel_filters(**bands))
    np.testing.assert_allclose(found, [slow_log_mel(one, **bands) for one in windows], atol=1e-6)  # type: ignore[arg-type]


def test_every_band_of_the_stores_has_a_frequency_and_a_full_sine_is_0_db() -> None:
    filters = mel_filters(INFO.num_mels, INFO.low_hz, INFO.high_hz)
    assert filters.shape == (64, 257) and (filters.max(1) > 0.1).all()
    full = np.sin(2 * np.pi * 1000 * np.arange(WINDOW) / RATE)[None].astype(np.float32)
    assert log_mel(full, filters).max() == pytest.approx(0, abs=2)
    levels = quantize(np.array([[-200.0, -100.0, -50.0, 0.0, 3.0]]), -100.0)
    assert levels[:, 0].tolist() == [255, 255, 128, 0, 0], "the last band is on top"


@pytest.mark.parametrize(
    ("codec", "ending", "rate", "channels"),
    [
        ("pcm_s16le", "avi", 16_000, 1),
        ("pcm_s16le", "avi", 44_100, 2),
        ("mp3", "mkv", 44_100, 1),
        ("aac", "mp4", 48_000, 2),
    ],
)
def test_a_rising_tone_rises_through_the_bands_in_the_frames_where_it_sounds(
    tmp_path: Path, codec: str, ending: str, rate: int, channels: int
) -> None:
    frames = moving_square(30)
    sound = np.stack([chirp(1.2, 300, 6000, rate=rate)] * channels)
    path = write_sound_video(tmp_path / f"a.{ending}", frames, sound, rate=rate, codec=codec)
    metadata, pictures = convert_audio(path)
    assert metadata.num_frames == 30 and pictures.shape == (30, 64, 4)
    assert metadata.audio_bytes and metadata.audio_sha256
    joined = pictures.transpose(1, 0, 2).reshape(64, -1)  # 100 columns a second
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (60, 7600))
    mels = np.linspace(low, high, 66)
    for column in range(5, 110, 3):
        hertz = 300 + 5700 * (column + 0.5) / 100 / 1.2
        band = 63 - int(joined[:, column].argmax())
        expected = np.abs(mels[1:-1] - 2595 * np.log10(1 + hertz / 700)).argmin()
        assert abs(band - expected) <= 1, (column, band, expected)


def test_sound_and_frames_stay_together_in_cuts_and_at_other_rates(tmp_path: Path) -> None:
    times = [0.3, 0.9, 2.1, 3.05]
    sound = bursts(times, 4.0)[None]
    for ending, codec in (("mp4", "aac"), ("mkv", "aac"), ("avi", "pcm_s16le")):
        path = write_sound_video(tmp_path / f"a.{ending}", moving_square(100), sound, codec=codec)
        _, pictures = convert_audio(path)
        assert loud_times(pictures, 25) == pytest.approx(times, abs=0.015), ending
        metadata, pictures = convert_audio(path, cut=(2.01, 3.5))  # the first frame is that at 2.04 s
        assert metadata.num_frames == 37
        assert loud_times(pictures, 25) == pytest.approx([2.1 - 2.04, 3.05 - 2.04], abs=0.015), ending
        metadata, pictures = convert_audio(path, fps=10.0, cut=(2.01, 3.5))
        assert metadata.num_frames == 15
        assert loud_times(pictures, 10) == pytest.approx([2.1 - 2.01, 3.05 - 2.01], abs=0.03), ending


def test_the_sound_of_a_frame_follows_its_time_stamp_if_the_rate_varies(tmp_path: Path) -> None:
    shown = [number if number < 10 else 25 + number for number in range(40)]  # frame 9 stays for a second
    path = write_sound_video(tmp_path / "a.mkv", moving_square(40), bursts([0.2, 0.9, 1.6], 2.6)[None], times=shown)
    _, pictures = convert_audio(path)
    loud = np.flatnonzero(pictures.max((1, 2)) > 230)
    assert loud.tolist() == [4, 5, 14, 15], "at 0.2 s and 1.6 s; at 0.9 s frame 9 merely stays"


def test_gaps_and_late_sound_are_silent(tmp_path: Path) -> None:
    path = write_sound_video(
        tmp_path / "a.mkv", moving_square(50), bursts([0.1, 0.3], 0.5)[None], codec="pcm_s16le", sound_start=0.6
    )
    _, pictures = convert_audio(path)
    assert loud_times(pictures, 25) == pytest.approx([0.7, 0.9], abs=0.015)
    assert (pictures[:14] == 0).all() and (pictures[30:] == 0).all()


def test_a_cut_after_the_end_of_the_sound_is_silent_and_damaged_sound_is_a_reason_to_skip(tmp_path: Path) -> None:
    path = write_sound_video(tmp_path / "a.mkv", moving_square(100), bursts([0.1], 0.5)[None], codec="pcm_s16le")
    _, pictures = convert_audio(path, cut=(2.5, 3.5))
    assert pictures.shape == (25, 64, 4) and pictures.max() == 0
    path = write_sound_video(tmp_path / "b.mkv", moving_square(30), bursts([0.1], 1.2)[None], codec="mp3")
    with av.open(str(path)) as file:
        packets = [bytes(packet) for packet in file.demux(file.streams.audio[0]) if packet.size]
    content = path.read_bytes()
    for packet in packets:
        content = content.replace(packet, bytes([0xFF]) * len(packet))
    path.write_bytes(content)
    with pytest.raises(StageError) as error:
        convert_audio(path)
    assert error.value.stage == "audio" and "can be decoded" in error.value.reason


def test_reading_piece_by_piece_equals_reading_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.uniform(-0.5, 0.5, (2, 60_000)).astype(np.float32)
    path = write_sound_video(tmp_path / "a.avi", moving_square(30), noise, rate=44_100, codec="pcm_s16le")
    whole = SoundReader(path, origin=Fraction(0)).read(-100, 25_000)
    reader = SoundReader(path, origin=Fraction(0))
    pieces = np.concatenate([reader.read(first, 1000) for first in range(-100, 24_900, 1000)])
    assert np.array_equal(pieces, whole) and whole[:90].max() == 0 and np.abs(whole[200:20_000]).max() > 0.3
    with pytest.raises(ValueError, match="go back"):
        reader.read(0, 10)


def test_a_video_without_sound_is_skipped_and_a_collection_without_any_is_an_early_error(tmp_path: Path) -> None:
    silent = write_video(tmp_path / "videos" / "a" / "silent.mp4", moving_square(8))
    with pytest.raises(StageError) as error:
        convert_audio(silent)
    assert error.value.stage == "audio" and "no sound" in error.value.reason
    command = ["preprocess", tmp_path / "videos", "-o", tmp_path / "clips", "--modalities", "rgb,audio", "--workers", 1]
    result = run_cli(*command)
    assert result.returncode == 2 and "none of the 1 videos has sound" in result.stderr + result.stdout
    assert not (tmp_path / "clips").exists()
    write_sound_video(tmp_path / "videos" / "a" / "loud.mp4", moving_square(8), bursts([0.1], 0.32)[None])
    result = run_cli(*command)
    assert result.returncode == 3, result.stdout + result.stderr
    store = ClipStore.open(tmp_path / "clips")
    assert [failure.video_id for failure in store.failures] == ["a/silent"]
    assert isinstance(store.info.audio, AudioInfo) and check_store(store) == []
    record = store.records[0]
    assert record.num_flow == 0 and store.read(record, "audio", range(8)).shape == (8, 1, 64, 4)
    (tmp_path / "clips" / "audio" / f"{record.video_id}.mp4").write_bytes(b"damaged")
    assert len(check_store(store)) == 1


def test_stores_without_sound_keep_their_settings_and_their_hash() -> None:
    info = StoreInfo(modalities=("rgb",), short_edge=0, max_frames=0, quality=18)
    assert "audio" not in info.model_dump()


@pytest.mark.real
def test_clips_of_ucf101_that_have_sound_are_heard_in_every_frame(real_videos: Path, tmp_path: Path) -> None:
    path = real_videos / "Archery" / "v_Archery_g24_c01.avi"  # MP3, cut out of a longer file
    link = tmp_path / "a.avi"
    link.symlink_to(path)
    metadata, pictures = convert_audio(link)
    assert len(pictures) == metadata.num_frames > 80
    assert (pictures.max((1, 2)) > 60).mean() > 0.9 and pictures.std() > 20
