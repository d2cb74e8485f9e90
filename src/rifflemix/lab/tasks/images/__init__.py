"""Tasks on images: as pixels, patches, numbers or whole."""
