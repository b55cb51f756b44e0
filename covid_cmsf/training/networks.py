"""Builds the encoder and projector that a run starts from: new ones, or those of a file."""

# B batch, D embedding

from pathlib import Path

from covid_cmsf.methods.base import HeadConfig
from covid_cmsf.models import MLP, Encoder, HeadLayout, create_model, load_weights
from covid_cmsf.models.heads import head_layout


def start_network(
    name: str, *, in_channels: int, head: HeadLayout | HeadConfig, init: str | None, part: str | None
) -> tuple[Encoder, MLP, str]:
    """Encoder and projector, new or from the file `init`, and in words where they come from.

    A file must fit: its encoder and channels are those asked for, or it is an error.
    """
    if init is None:
        encoder = create_model(name, in_channels=in_channels)
        return encoder, MLP(_layout(head, encoder.num_features)), "random weights"
    if not Path(init).exists():
        raise FileNotFoundError(f"init: no file {init}; train the start first, or leave init out for random weights")
    reuse = isinstance(head, HeadConfig) and head.reuse
    loaded = load_weights(init, branch=part, encoder=name, in_channels=in_channels, keep_head=reuse)
    words = f"{loaded.metadata.trained} ({init})"
    if reuse:
        assert isinstance(head, HeadConfig) and loaded.projector is not None
        return loaded.encoder, _reused(loaded.projector, head, init), words + ", with its projector"
    return loaded.encoder, MLP(_layout(head, loaded.encoder.num_features)), words


def _layout(head: HeadLayout | HeadConfig, num_features: int) -> HeadLayout:
    if isinstance(head, HeadLayout):
        return head
    return head_layout(
        head.projector, num_features, embedding_size=head.embedding_size, output_batch_norm=head.output_batch_norm
    )


def _reused(projector: MLP, head: HeadConfig, place: str) -> MLP:
    """The file's projector; with a new batch norm at its end where the settings want one and it has none."""
    layout = projector.layout
    if head.embedding_size not in (None, layout.sizes[-1]):
        raise ValueError(
            f"{place}: its projector ends in {layout.sizes[-1]} values, and method.head.embedding_size is "
            f"{head.embedding_size}; leave it out, or set method.head.reuse=false"
        )
    if not head.output_batch_norm or layout.output_batch_norm:
        return projector
    grown = MLP(layout.model_copy(update={"output_batch_norm": True}))
    grown.load_state_dict({**grown.state_dict(), **projector.state_dict()})
    return grown
