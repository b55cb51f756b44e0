"""What `learn` says about the entries of an index."""

from covid_cmsf.projects.measures import describe, measure_encoders
from tests.evaluation.factories import synthetic_features


def test_entries_are_compared_by_their_names_also_if_two_have_one_modality() -> None:
    features = {name: synthetic_features(seed=seed) for seed, name in enumerate(("flow", "motion", "image"))}
    assert len({one.provenance.eval_protocol.modality for one in features.values()}) == 1
    found = measure_encoders(features)
    assert [one.modality for one in found["motion"].unlabeled.agreement] == ["flow", "image"]
    assert sum("are also among image's" in line for line in describe(found["flow"])) == 1
