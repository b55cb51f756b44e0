"""Select classes of an image set by a list, or the first few images of each class."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.files import read_text

# The ImageNet-100 of CMC (Tian et al. 2020), which most papers use, in the order of its list.
CMC100 = """
n02869837 n01749939 n02488291 n02107142 n13037406 n02091831 n04517823 n04589890 n03062245 n01773797
n01735189 n07831146 n07753275 n03085013 n04485082 n02105505 n01983481 n02788148 n03530642 n04435653
n02086910 n02859443 n13040303 n03594734 n02085620 n02099849 n01558993 n04493381 n02109047 n04111531
n02877765 n04429376 n02009229 n01978455 n02106550 n01820546 n01692333 n07714571 n02974003 n02114855
n03785016 n03764736 n03775546 n02087046 n07836838 n04099969 n04592741 n03891251 n02701002 n03379051
n02259212 n07715103 n03947888 n04026417 n02326432 n03637318 n01980166 n02113799 n02086240 n03903868
n02483362 n04127249 n02089973 n03017168 n02093428 n02804414 n02396427 n04418357 n02172182 n01729322
n02113978 n03787032 n02089867 n02119022 n03777754 n04238763 n02231487 n03032252 n02138441 n02104029
n03837869 n03494278 n04136333 n03794056 n03492542 n02018207 n04067472 n03930630 n03584829 n02123045
n04229816 n02100583 n03642806 n04336792 n03259280 n02116738 n02108089 n03424325 n01855672 n02090622
""".split()
KNOWN_LISTS = ("cmc100", "official100")
OFFICIAL100_SEED = 1234


def resolve_class_list(wanted: str, available: Sequence[str]) -> list[str]:
    """Return the sorted class names of a list: a text file with one name per line, or one of `KNOWN_LISTS`.

    `cmc100` is CMC's ImageNet-100. `official100` is the ImageNet-100 of the official CMSF code: 100 of the 1000 sorted
    classes by NumPy's permutation with seed 1234; only ten of them are in CMC's list.
    """
    if wanted == "official100":
        if len(available) != 1000:
            raise ValueError(f"official100 selects 100 of ImageNet's 1000 classes; this set has {len(available)}")
        picked = np.random.RandomState(OFFICIAL100_SEED).permutation(1000)[:100]
        return sorted(sorted(available)[number] for number in picked)
    if wanted == "cmc100":
        names = CMC100
    else:
        path = Path(wanted)
        if not path.is_file():
            raise FileNotFoundError(
                f"no list of classes {wanted}; name a text file, or one of {', '.join(KNOWN_LISTS)}"
            )
        names = read_text(path).split()
    if missing := sorted(set(names) - set(available)):
        raise ValueError(f"{wanted} lists {len(missing)} classes that the set does not have, the first: {missing[0]}")
    return sorted(set(names))


def select_classes(records: Sequence[ClipRecord], wanted: str) -> list[ClipRecord]:
    """Return the records of the wanted classes, relabeled from 0 in the order of the class names."""
    names = resolve_class_list(wanted, sorted({record.class_name for record in records}))
    labels = {name: label for label, name in enumerate(names)}
    return [
        replace(record, label=labels[record.class_name]) for record in records if record.class_name in labels
    ]  # fmt: skip


def limit_per_class(records: Sequence[ClipRecord], count: int) -> list[ClipRecord]:
    """Keep the first `count` training images of each class, and all images of other subsets."""
    seen: Counter[int] = Counter()
    kept = []
    for record in records:
        if record.video_id.startswith("train/"):
            seen[record.label] += 1
            if seen[record.label] > count:
                continue
        kept.append(record)
    return kept
