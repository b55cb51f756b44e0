"""Image sets: an image is a clip of one frame (modality `frame`), so image sets work wherever clips do."""
