"""Our own two formats.

The exchange file is safetensors: `encoder.*`, optionally `projector.*`, and the card as JSON in the header entry
`covid_cmsf`. The training checkpoint is a torch file that `weights_only=True` can read:

    {"format": 1, "encoder": {card}, "state": {"online.encoder.*", "online.projector.*", "target.encoder.*", ...}, ...}

Training may put more beside these three and more into `state`; reading an encoder looks at nothing else.
"""

from pathlib import Path

from safetensors.torch import save
from torch import nn

from covid_cmsf.atomic import atomic_path
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.weights.card import FORMAT, EncoderCard, read_card
from covid_cmsf.models.weights.files import WeightsFile
from covid_cmsf.models.weights.layout import Layout, Part

HEADER_KEY = "covid_cmsf"


def same_name(our_key: str) -> tuple[str, ...]:
    return (our_key,)


EXCHANGE = Layout(
    name="covid-cmsf encoder",
    parts=(Part("online", "encoder", "encoder.", "projector."),),
    their_names=same_name,
    has_card=True,
)
CHECKPOINT = Layout(
    name="covid-cmsf training checkpoint",
    parts=tuple(Part(name, name, f"{name}.encoder.", f"{name}.projector.") for name in ("online", "target", "guide")),
    their_names=same_name,
    has_card=True,
)


def our_layout(file: WeightsFile) -> Layout | None:
    """Which of our formats a file has, by its outside; None when it is somebody else's."""
    if file.header is not None and HEADER_KEY in file.header:
        return EXCHANGE
    return CHECKPOINT if {"format", "encoder", "state"} <= file.values.keys() else None


def card_of(file: WeightsFile) -> EncoderCard:
    """The card inside one of our files."""
    if file.header is not None:
        return read_card(file.header[HEADER_KEY], place=str(file.path))
    if file.values["format"] != FORMAT:
        raise ValueError(f"{file.path} has format {file.values['format']!r}; this version reads format {FORMAT}")
    return read_card(file.values["encoder"], place=str(file.path))


def save_encoder(path: Path, encoder: Encoder, card: EncoderCard, *, projector: nn.Module | None = None) -> None:
    """Writes the exchange file. The card must describe this encoder."""
    assert card.encoder == encoder.name and card.in_channels == encoder.in_channels
    assert (card.projector is not None) == (projector is not None)
    state = {f"encoder.{key}": tensor for key, tensor in encoder.state_dict().items()}
    if projector is not None:
        state |= {f"projector.{key}": tensor for key, tensor in projector.state_dict().items()}
    plain = {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(save(plain, metadata={HEADER_KEY: card.model_dump_json()}))
