"""The settings of the spectrograms of a store: `preprocess.audio` makes them."""

from pydantic import Field

from covid_cmsf.config import Config


class AudioInfo(Config):
    """How spectrograms were computed; frame i of the modality `audio` is the sound while frame i is shown."""

    version: str = Field(description="the software that decoded and resampled the sound")
    num_mels: int = Field(default=64, ge=2, multiple_of=2, description="height of a frame; the highest is on top")
    columns: int = Field(default=4, ge=2, multiple_of=2, description="width of a frame: spectra per video frame")
    low_hz: float = Field(default=60.0, ge=0, description="lower end of the lowest mel")
    high_hz: float = Field(default=7600.0, gt=0, le=8000, description="upper end of the highest mel")
    floor_db: float = Field(default=-100.0, lt=0, description="level 0; level 255 is 0 dB, a sine at full scale")
