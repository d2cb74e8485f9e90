"""Tasks over folders of labeled images: your own folders and published data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Request, Task
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.images.folder_layout import folder_listing, has_folder
from rifflemix.lab.tasks.images.image_folder import ImageFolder
from rifflemix.lab.tasks.images.image_listing import Entry, Listing
from rifflemix.lab.tasks.images.imagenet_layouts import (
    ANNOTATIONS,
    SOLUTION,
    TINY_LABELS,
    dogs_listing,
    has_dogs,
    has_imagenet,
    has_tiny,
    imagenet_listing,
    real_test,
    tiny_listing,
)
from rifflemix.lab.tasks.images.oxford_layouts import (
    FLOWER_LABELS,
    FLOWER_SPLITS,
    PET_LISTS,
    flowers_listing,
    has_flowers,
    has_pets,
    pets_listing,
)
from rifflemix.lab.tasks.images.pixels import (
    pixel_shapes,
)

_PREPROCESSING = (
    "The middle square of each image is resized to size x size (bicubic); of validation and test "
    "images crop_share of it. Whole images with layout image, else patches of patch_size as "
    "vectors; color gray with patch_size 1: pixels as tokens."
)


class _ImageNet(ImageFolder):
    """ImageNet with the optional ReaL labels of its validation images."""

    def _options(self, request: Request) -> dict[str, Any]:
        if (further := request.options["further_tests"]) not in ("", "real"):
            raise bad_argument("further_tests", "real, or nothing", repr(further))
        return super()._options(request)

    def _with_further_tests(
        self, task: Task, request: Request, listing: Listing, tested: Sequence[Entry]
    ) -> Task:
        if not request.options["further_tests"] or request.data_dir is None:
            return task
        real = real_test(
            task.split("test"),
            [entry.path for entry in tested],
            [request.data_dir, listing.root],
            task.num_classes,
        )
        return replace(task, further_tests={"real": real})


def _card(
    name: str,
    title: str,
    about: str,
    source: str,
    licence: str,
    *,
    classes: int | None,
    patch_size: int = 16,
    **options: Any,
) -> TaskCard:
    """Describe a task. Its classes are None if only the data determines them."""
    return TaskCard(
        name=name,
        title=title,
        source=source,
        licence=licence,
        description=f"{about} {_PREPROCESSING}",
        needs_data=True,
        is_image=True,
        options={
            "size": 224,
            "patch_size": None,
            "color": "rgb",
            "layout": "sequence",
            "augment": "none",
            "crop_share": 1.0,
            **options,
        },
        shapes=None
        if classes is None
        else partial(pixel_shapes, classes=classes, channels=3, side=224, patch_size=patch_size),
    )


IMAGE_FOLDER = ImageFolder(
    _card(
        "image_folder",
        "Image folder",
        "Any images in folders of their classes: train/CLASS/*, val/CLASS/*, test/CLASS/*; without "
        "test, val is the test split; without both, a tenth of each class is for each.",
        "your own images",
        "your own",
        classes=None,
    ),
    folder_listing,
    has_folder,
    ("train/CLASS/", "val/CLASS/", "test/CLASS/", "or only CLASS/"),
    "images, sorted into a folder for each class",
    patch_size=16,
)


IMAGENET = _ImageNet(
    _card(
        "imagenet",
        "ImageNet-1k",
        "1.28 million images of 1,000 classes; test is the published validation set of 50,000, "
        "with further_tests real also with its ReaL labels.",
        "Deng et al. (2009), Russakovsky et al. (2015), ILSVRC 2012",
        "non-commercial research, see image-net.org",
        classes=1000,
        crop_share=0.875,
        further_tests="",
    ),
    imagenet_listing,
    has_imagenet,
    (
        "train/nXXXXXXXX/",
        "val/nXXXXXXXX/",
        f"or a flat val/ with {SOLUTION} or {ANNOTATIONS}/",
        "or all this in ILSVRC/Data/CLS-LOC/",
    ),
    "ILSVRC 2012 from https://image-net.org",
    patch_size=16,
)


TINY_IMAGENET = ImageFolder(
    _card(
        "tiny_imagenet",
        "Tiny-ImageNet",
        "110,000 images of 64x64 pixels, 200 classes; test is the published validation set of "
        "10,000.",
        "Le and Yang (2015)",
        "non-commercial research, see image-net.org",
        classes=200,
        patch_size=4,
        size=64,
    ),
    tiny_listing,
    has_tiny,
    ("tiny-imagenet-200/train/", f"tiny-imagenet-200/val/{TINY_LABELS}"),
    "tiny-imagenet-200.zip from http://cs231n.stanford.edu/tiny-imagenet-200.zip, unpacked",
    patch_size=4,
)


DOGS_VS_CATS = ImageFolder(
    _card(
        "dogs_vs_cats",
        "Dogs vs. Cats",
        "25,000 photographs, label 0 cat and 1 dog; a tenth of each class is for validation and "
        "a tenth for test, because the published test images have no labels.",
        "Elson et al. (2007), Asirra; the Kaggle competition of 2013",
        "see https://www.kaggle.com/c/dogs-vs-cats",
        classes=2,
    ),
    dogs_listing,
    has_dogs,
    ("train/cat.0.jpg", "train/dog.0.jpg", "..."),
    "train.zip from https://www.kaggle.com/c/dogs-vs-cats/data, unpacked",
    patch_size=16,
)


FLOWERS = ImageFolder(
    _card(
        "flowers102",
        "Oxford Flowers-102",
        "8,189 photographs of 102 flowers, in the published splits: 1,020 for training, 1,020 for "
        "validation and 6,149 for test.",
        "Nilsback and Zisserman (2008)",
        "see https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
        classes=102,
    ),
    flowers_listing,
    has_flowers,
    ("jpg/image_00001.jpg", "...", FLOWER_LABELS, FLOWER_SPLITS, "or all this in flowers-102/"),
    f"102flowers.tgz, {FLOWER_LABELS} and {FLOWER_SPLITS} from "
    "https://www.robots.ox.ac.uk/~vgg/data/flowers/102, unpacked",
    patch_size=16,
)


PETS = ImageFolder(
    _card(
        "oxford_pets",
        "Oxford-IIIT Pet",
        "7,349 photographs of 37 breeds of cats and dogs; test is the published list of 3,669.",
        "Parkhi et al. (2012)",
        "CC BY-SA 4.0",
        classes=37,
    ),
    pets_listing,
    has_pets,
    ("images/Abyssinian_1.jpg", "...", *PET_LISTS.values(), "or all this in oxford-iiit-pet/"),
    "images.tar.gz and annotations.tar.gz from https://www.robots.ox.ac.uk/~vgg/data/pets, "
    "unpacked",
    patch_size=16,
)
