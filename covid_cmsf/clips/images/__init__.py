"""Sets of images: an image is a clip of one frame, so everything that takes clips takes them too (modality `frame`)."""
