"""Real clips: an index of a store's encodings, asked with the original files."""

from pathlib import Path

import pytest

from covid_cmsf.search.build import index_videos
from covid_cmsf.search.files import FileEmbedder
from covid_cmsf.search.find import search_videos
from tests.evaluation.factories import small_checkpoint
from tests.preprocess.commands import preprocess
from tests.search.factories import quick_encoder


@pytest.mark.real
@pytest.mark.slow
def test_original_files_outside_of_the_store_find_their_stored_copies_first(real_videos: Path, tmp_path: Path) -> None:
    files = sorted(real_videos.rglob("*.avi"))[::12][:8]
    for file in files:
        (tmp_path / "videos").mkdir(exist_ok=True)
        (tmp_path / "videos" / file.name).symlink_to(file)
    done = preprocess(
        tmp_path / "videos", tmp_path / "clips", "--modalities", "rgb", "--short-edge", "64", layout="flat"
    )
    assert done.returncode == 0, done.stderr
    weights = small_checkpoint(tmp_path / "rgb.safetensors")
    index_videos(tmp_path / "clips", [quick_encoder(weights)], tmp_path / "index")
    embedder = FileEmbedder(tmp_path / "index")
    for file in files:
        found = search_videos(embedder, file, top=2)
        assert found[0].video_id == file.stem and found[0].score > found[1].score
    part = search_videos(embedder, files[0], start=1, end=2, top=1)[0]
    assert part.video_id == files[0].stem and 0.9 <= part.query_start <= 2
