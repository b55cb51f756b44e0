"""CoViD-CMSF: teach video encoders without labels by constrained mean shift.

    import covid_cmsf as cc

    clips = cc.open_clips("clips/ucf101")
    encoder = cc.load_encoder("encoder.safetensors")
    cc.embed("my.mp4", encoder)                                # (D,)
    features = cc.extract_features(encoder, clips, "rgb.safetensors")
    cc.retrieval(features).recall[1]                           # percent
    cc.search_videos("index", "my.mp4", top=5)                 # the most similar videos of an index

Every name below is imported when it is first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from covid_cmsf.clips.base import Clips
    from covid_cmsf.clips.factory import open_clips
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.commands import extract_features, learn, retrieval, run_plan, train
    from covid_cmsf.embeddings import EmbeddingTable, embed_files, features_table, save_embeddings
    from covid_cmsf.evaluation.features.file import Features, load_features, save_features
    from covid_cmsf.evaluation.knn import KnnResult, evaluate_knn
    from covid_cmsf.evaluation.probes.linear import LinearResult, evaluate_linear
    from covid_cmsf.evaluation.retrieval import RetrievalResult
    from covid_cmsf.methods.constraints import (
        Constraint,
        GuideConstraint,
        LabelConstraint,
        Query,
        SelfConstraint,
        Unconstrained,
    )
    from covid_cmsf.methods.contrastive import ContrastiveLoss, label_positives, mined_positives
    from covid_cmsf.methods.mean_shift import MeanShiftLoss
    from covid_cmsf.methods.memory_bank import MemoryBank
    from covid_cmsf.methods.neighbors import Neighbors, nearest
    from covid_cmsf.models import (
        MLP,
        Encoder,
        EncoderMetadata,
        Guide,
        HeadLayout,
        Network,
        create_model,
        create_network,
        ema_update_,
        freeze_,
        list_models,
        load_encoder,
        load_guide,
        make_target,
        save_encoder,
    )
    from covid_cmsf.projects.learn import LearnResult
    from covid_cmsf.search.find import FoundVideo, search_videos
    from covid_cmsf.search.index import SearchIndex, load_index
    from covid_cmsf.sharing.folder import save_pretrained
    from covid_cmsf.sharing.hub import from_pretrained, push_to_hub
    from covid_cmsf.training.config import TrainConfig
    from covid_cmsf.video_files import VideoFiles, embed, optical_flow
    from covid_cmsf.views.batch import Batch
    from covid_cmsf.views.config import ViewConfig
    from covid_cmsf.views.dataset import ViewDataset
    from covid_cmsf.views.loader import ViewLoader
    from preprocess.flow import FlowParameters

# Where each name lives: the imports above once more, for Python.
_HOME = {
    "covid_cmsf.clips.base": ["Clips"],
    "covid_cmsf.clips.factory": ["open_clips"],
    "covid_cmsf.clips.store": ["ClipStore"],
    "covid_cmsf.commands": ["extract_features", "learn", "retrieval", "run_plan", "train"],
    "covid_cmsf.embeddings": ["EmbeddingTable", "embed_files", "features_table", "save_embeddings"],
    "covid_cmsf.evaluation.features.file": ["Features", "load_features", "save_features"],
    "covid_cmsf.evaluation.knn": ["KnnResult", "evaluate_knn"],
    "covid_cmsf.evaluation.probes.linear": ["LinearResult", "evaluate_linear"],
    "covid_cmsf.evaluation.retrieval": ["RetrievalResult"],
    "covid_cmsf.methods.constraints": [
        "Constraint",
        "GuideConstraint",
        "LabelConstraint",
        "Query",
        "SelfConstraint",
        "Unconstrained",
    ],
    "covid_cmsf.methods.contrastive": ["ContrastiveLoss", "label_positives", "mined_positives"],
    "covid_cmsf.methods.mean_shift": ["MeanShiftLoss"],
    "covid_cmsf.methods.memory_bank": ["MemoryBank"],
    "covid_cmsf.methods.neighbors": ["Neighbors", "nearest"],
    "covid_cmsf.models": [
        "MLP",
        "Encoder",
        "EncoderMetadata",
        "Guide",
        "HeadLayout",
        "Network",
        "create_model",
        "create_network",
        "ema_update_",
        "freeze_",
        "list_models",
        "load_encoder",
        "load_guide",
        "make_target",
        "save_encoder",
    ],
    "covid_cmsf.projects.learn": ["LearnResult"],
    "covid_cmsf.search.find": ["FoundVideo", "search_videos"],
    "covid_cmsf.search.index": ["SearchIndex", "load_index"],
    "covid_cmsf.sharing.folder": ["save_pretrained"],
    "covid_cmsf.sharing.hub": ["from_pretrained", "push_to_hub"],
    "covid_cmsf.training.config": ["TrainConfig"],
    "covid_cmsf.video_files": ["VideoFiles", "embed", "optical_flow"],
    "covid_cmsf.views.batch": ["Batch"],
    "covid_cmsf.views.config": ["ViewConfig"],
    "covid_cmsf.views.dataset": ["ViewDataset"],
    "covid_cmsf.views.loader": ["ViewLoader"],
    "preprocess.flow": ["FlowParameters"],
}

__all__ = [
    "MLP",
    "Batch",
    "ClipStore",
    "Clips",
    "Constraint",
    "ContrastiveLoss",
    "EmbeddingTable",
    "Encoder",
    "EncoderMetadata",
    "Features",
    "FlowParameters",
    "FoundVideo",
    "Guide",
    "GuideConstraint",
    "HeadLayout",
    "KnnResult",
    "LabelConstraint",
    "LearnResult",
    "LinearResult",
    "MeanShiftLoss",
    "MemoryBank",
    "Neighbors",
    "Network",
    "Query",
    "RetrievalResult",
    "SearchIndex",
    "SelfConstraint",
    "TrainConfig",
    "Unconstrained",
    "VideoFiles",
    "ViewConfig",
    "ViewDataset",
    "ViewLoader",
    "create_model",
    "create_network",
    "ema_update_",
    "embed",
    "embed_files",
    "evaluate_knn",
    "evaluate_linear",
    "extract_features",
    "features_table",
    "freeze_",
    "from_pretrained",
    "label_positives",
    "learn",
    "list_models",
    "load_encoder",
    "load_features",
    "load_guide",
    "load_index",
    "make_target",
    "mined_positives",
    "nearest",
    "open_clips",
    "optical_flow",
    "push_to_hub",
    "retrieval",
    "run_plan",
    "save_embeddings",
    "save_encoder",
    "save_features",
    "save_pretrained",
    "search_videos",
    "train",
]

if not TYPE_CHECKING:  # a type checker would take any misspelled name for a lazy one

    def __getattr__(name: str) -> object:
        for module, names in _HOME.items():
            if name in names:
                value = globals()[name] = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
