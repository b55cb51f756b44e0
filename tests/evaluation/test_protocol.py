"""Evaluation protocols: metadata, windows, crops."""

import numpy as np
import pytest
import torch

from covid_cmsf.evaluation.features.model import create_random_encoder
from covid_cmsf.evaluation.features.protocol import build_eval_protocol, choose_windows, video_rng
from covid_cmsf.evaluation.features.video_dataset import VideoDataset, crop_geometries, load_videos
from covid_cmsf.models import EncoderMetadata
from covid_cmsf.views.augment_params import GeometryParams
from covid_cmsf.views.ops import crop_resize
from tests.evaluation.factories import SyntheticClips


def metadata(**changes: object) -> EncoderMetadata:
    _, made = create_random_encoder("s3d_tiny", modality="rgb", seed=0, input_size=(8, 32, 32), stride=2)
    return made.model_copy(update=changes)


def test_the_card_says_how_to_show_and_the_user_knows_better() -> None:
    eval_protocol = build_eval_protocol(metadata())
    assert (
        eval_protocol.modality,
        eval_protocol.length,
        eval_protocol.size,
        eval_protocol.stride,
        eval_protocol.num_windows,
    ) == ("rgb", 8, 32, 2, 4)
    told = build_eval_protocol(metadata(), length=5, size=24, stride=1, num_windows=2)
    assert (told.length, told.size, told.stride, told.num_windows) == (5, 24, 1, 2)
    assert build_eval_protocol(metadata(mean=(0.1, 0.2, 0.3))).mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"modality": "unknown"}, {}, "give one of rgb, flow, residual_flow, motion, residual_motion, rgbdiff, frame"),
        ({}, {"modality": "sound"}, "unknown modality 'sound'"),
        ({}, {"modality": "flow"}, "this s3d_tiny was trained on rgb, so it can't be used on flow"),
        ({"modality": "flow"}, {"modality": "rgb"}, "trained on flow, so it can't be used on rgb"),
        ({"in_channels": 2, "mean": (0, 0), "std": (1, 1)}, {}, "takes 2 channels, and rgb has 3"),
        ({"input_size": (8, 32, 40)}, {}, "give a square size"),
        ({}, {"protocol": "mine"}, "unknown protocol 'mine'; choose from clean, coclr"),
        ({}, {"protocol": "coclr", "num_windows": 3}, "protocol coclr defines its windows"),
        ({}, {"size": 4}, "greater than or equal to 8"),
    ],
)
def test_what_cannot_be_shown_is_an_error(changes: dict, options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        build_eval_protocol(metadata(**changes), **options)


def test_a_2d_network_sees_the_center_frame() -> None:
    _, image = create_random_encoder("r18", modality="frame", seed=0, input_size=(1, 32, 32))
    eval_protocol = build_eval_protocol(image)
    for protocol in ("clean", "coclr"):
        chosen = build_eval_protocol(image, protocol=protocol)
        assert choose_windows(chosen, 15, "train", np.random.default_rng(0)) == [[7]]
    video = VideoDataset(SyntheticClips(), SyntheticClips().records, ["train"] * 24, eval_protocol)[0]
    assert next(video.views(eval_protocol, torch.device("cpu"))).shape == (3, 32, 32)


def test_a_2d_network_sees_the_center_of_every_window_if_windows_are_asked_for() -> None:
    _, image = create_random_encoder("r18", modality="frame", seed=0, input_size=(1, 32, 32))
    eval_protocol = build_eval_protocol(image, length=5, stride=2, num_windows=2)
    clips = SyntheticClips()
    video = VideoDataset(clips, clips.records, ["train"] * 24, eval_protocol)[0]
    windows = choose_windows(eval_protocol, clips.records[0].num_frames, "train", np.random.default_rng(0))
    assert video.starts == tuple(window[0] for window in windows)
    alone = build_eval_protocol(image, num_windows=1)
    for view, window in zip(video.views(eval_protocol, torch.device("cpu")), windows, strict=True):
        frame = crop_resize(clips.read_raw(clips.records[0], "rgb", [window[2]]), video.params[0].geometry, alone.size)
        assert torch.equal(view, alone.to_view(frame, video.params[0], video.levels))


def test_clean_windows_are_the_same_for_train_and_test() -> None:
    eval_protocol = build_eval_protocol(metadata())
    windows = [
        choose_windows(eval_protocol, 40, subset, np.random.default_rng(i))
        for i, subset in enumerate(("train", "test"))
    ]
    assert windows[0] == windows[1] and len(windows[0]) == 4 and windows[0][-1][-1] == 39


def test_coclr_windows_are_theirs() -> None:
    eval_protocol = build_eval_protocol(metadata(), protocol="coclr", length=32, stride=1)
    tested = choose_windows(eval_protocol, 100, "test", np.random.default_rng(0))
    assert [window[0] for window in tested] == [0, 15, 30, 45, 60]
    starts = {choose_windows(eval_protocol, 35, "train", np.random.default_rng(i))[0][0] for i in range(60)}
    assert starts == {0, 1, 2}  # 3 would fit, too, and is never drawn
    short = choose_windows(eval_protocol, 20, "train", np.random.default_rng(0))
    assert short == [[0] * 12 + list(range(20))]
    with pytest.raises(ValueError, match="excludes videos of fewer than 18 frames"):
        choose_windows(eval_protocol, 17, "test", np.random.default_rng(0))


def test_coclr_colors_follow_from_the_name_of_the_video() -> None:
    eval_protocol = build_eval_protocol(metadata(), protocol="coclr", length=6, stride=1)
    clips = SyntheticClips()
    data = VideoDataset(clips, clips.records, ["test"] * len(clips.records), eval_protocol)
    turned = VideoDataset(clips, clips.records[::-1], ["test"] * len(clips.records), eval_protocol)
    last = len(clips.records) - 1
    draws = [data[i].params for i in range(last + 1)]
    assert draws == [turned[last - i].params for i in range(last + 1)]
    shaken = [draw[0].color_jitter is not None for draw in draws]
    assert 0 < sum(shaken) < last
    assert video_rng(0, "a").random() != video_rng(1, "a").random()


def test_views_are_what_one_gets_window_by_window() -> None:
    eval_protocol = build_eval_protocol(metadata(), length=6, stride=1, num_windows=3)
    clips = SyntheticClips()
    video = VideoDataset(clips, clips.records, ["train"] * len(clips.records), eval_protocol)[3]
    views = list(video.views(eval_protocol, torch.device("cpu")))
    assert video.starts == (0, 4, 9) and len(views) == 3
    for start, view in zip(video.starts, views, strict=True):
        frames = clips.read_raw(clips.records[3], "rgb", range(start, start + 6)).float() / 255
        side = round(224 / 240 * 28)
        crop = frames[:, :, 1 : 1 + side, 3 : 3 + side]
        small = torch.nn.functional.interpolate(crop, (32, 32), mode="bilinear", antialias=True)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (eval_protocol.mean, eval_protocol.std))
        expected = ((small - mean) / std).transpose(0, 1)
        assert (view - expected).abs().max() < 0.02  # cuts are rounded to bytes


def test_a_coclr_flow_network_cut_to_two_channels_sees_bytes() -> None:
    two = metadata(in_channels=2, mean=(0.4, 0.5), std=(0.2, 0.25), modality="flow")
    eval_protocol = build_eval_protocol(two)
    clips = SyntheticClips()
    video = VideoDataset(clips, clips.records, ["train"] * len(clips.records), eval_protocol)[0]
    view = next(video.views(eval_protocol, torch.device("cpu")))
    raw = video.crops[0][list(video.window_frames[0])].float() / 255
    expected = (raw - torch.tensor([0.4, 0.5]).view(2, 1, 1)) / torch.tensor([0.2, 0.25]).view(2, 1, 1)
    assert torch.allclose(view, expected.transpose(0, 1), atol=1e-5)


def test_three_channels_of_flow_are_shown_as_coclr_stores_them() -> None:
    for said in ("flow", "unknown"):
        assert build_eval_protocol(metadata(modality=said), modality="flow").flow_style == "coclr"


def test_crops_are_center_and_corners_and_their_mirror_images() -> None:
    center = GeometryParams(0.1, 0.2, 0.8, 0.6, False)
    five = crop_geometries(center, 5)
    assert [(g.top, g.left) for g in five] == [(0.1, 0.2)] + [
        (top, left) for top in (0.0, 1 - 0.8) for left in (0.0, 1 - 0.6)
    ]
    ten = crop_geometries(center, 10)
    assert ten[:5] == five and all(g.flip for g in ten[5:])
    clips = SyntheticClips()
    with pytest.raises(ValueError, match="num_crops = 3: choose from 1, 5, 10"):
        VideoDataset(clips, clips.records, ["train"] * 24, build_eval_protocol(metadata()), num_crops=3)


def test_clips_without_the_modality_are_an_error() -> None:
    clips = SyntheticClips()
    clips.modalities = ("rgb",)
    with pytest.raises(ValueError, match="flow needs clips with flow"):
        VideoDataset(clips, clips.records, ["train"] * 24, build_eval_protocol(metadata(modality="flow")))


def test_an_unreadable_video_is_a_fault_and_nothing_stands_in() -> None:
    clips = SyntheticClips(broken=[1])
    eval_protocol = build_eval_protocol(metadata(), length=6, stride=1)
    videos = list(
        load_videos(VideoDataset(clips, clips.records, ["train"] * 24, eval_protocol), [0, 1, 2], num_workers=0)
    )
    assert [video.error for video in videos] == ["", "damaged", ""] and videos[1].crops == ()
