"""Tasks over folders of labeled images: your own folders and published data sets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, InputWarning, bad_argument, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer, check_number
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus
from rifflemix.lab.tasks.data_io.files import Array, absent, cache_root, missing_data
from rifflemix.lab.tasks.data_io.shards import check_room, prepare_stack
from rifflemix.lab.tasks.data_io.splits import duplicates_across_splits
from rifflemix.lab.tasks.images import imagenet_layouts, oxford_layouts
from rifflemix.lab.tasks.images.image_files import FileMaker, PixelScale
from rifflemix.lab.tasks.images.image_listing import (
    Entry,
    Listing,
    folder_listing,
    has_folder,
    in_a_note,
)
from rifflemix.lab.tasks.images.pixels import (
    IMAGENET_SCALE,
    ImageStack,
    check_layout,
    pixel_shapes,
    pixel_task,
)

# Gray: the mean over the three color channels.
_SCALES = {
    "rgb": IMAGENET_SCALE,
    "gray": PixelScale(top=255, mean=(0.449,), std=(0.226,)),
}
_CHANNELS = {"rgb": 3, "gray": 1}
_SHARD_BYTES = 1 << 26
_MOST_CLASSES = 1 << 16
_MOST_NAMES = 10


@dataclass(frozen=True)
class ImageFolder:
    """A task that reads image files from folders.

    Attributes:
        card: description of the task.
        find: function that lists the images in a data folder. It returns None if the folder does
            not contain the data set.
        has_files: function that checks for the data set without listing its images.
        looked_for: files and folders that the data folder may contain.
        get_it: download instructions.
        patch_size: default patch size of the layout "sequence".
    """

    card: TaskCard
    find: Callable[[Path], Listing | None]
    has_files: Callable[[Path], bool]
    looked_for: Sequence[str]
    get_it: str
    patch_size: int

    def load(self, request: Request) -> Task:
        """Load the task. The first call decodes the images to the cache."""
        options = self._options(request)
        listing = self._listing(request.data_dir)
        entries, note = listing.splits()
        if request.max_samples is not None:
            entries = {name: part[: request.max_samples] for name, part in entries.items()}
        folder = self._folder(listing, options)
        count = sum(map(len, entries.values()))
        check_room(folder, count * int(options["size"]) ** 2 * _CHANNELS[str(options["color"])])
        splits = {
            name: self._stack(listing, folder, name, entries[name], request, options)
            for name in reversed(SPLITS)
        }
        doubles = duplicates_across_splits(
            {name: map(hash, images.content(rows)) for name, (images, _, rows) in splits.items()}
        )
        for told in filter(None, (listing.left_out, doubles)):
            warnings.warn(f"task {self.card.name}: {told}", InputWarning, stacklevel=4)
        task = pixel_task(
            self.card,
            options,
            {name: splits[name] for name in SPLITS},
            scale=_SCALES[str(options["color"])],
            split_note="; ".join(filter(None, (note, doubles))),
            data_source=_told(listing),
            classes=tuple(map(in_a_note, listing.classes)),
        )
        return self._with_further_tests(task, request, listing, entries["test"])

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Check for the data set in `data_dir` without listing its images."""
        if data_dir is None or not self.has_files(data_dir):
            return absent(self.card, data_dir)
        return TaskStatus(self.card.name, True, f"{self.card.title} in {data_dir}")

    def prepared(self, request: Request) -> Path | None:
        return self._folder(self._listing(request.data_dir), self._options(request))

    def _with_further_tests(
        self, task: Task, request: Request, listing: Listing, tested: Sequence[Entry]
    ) -> Task:
        """Add the test sets that the option further_tests selects."""
        return task

    def _options(self, request: Request) -> dict[str, Any]:
        """Check the options and fill in the patch size."""
        options = dict(request.options)
        size = check_integer(options, "size", 8, 4096)
        check_choice("color", options["color"], _SCALES)
        check_layout(options)
        if not check_number(options, "crop_share") <= 1:
            raise bad_argument("crop_share", "over 0, at most 1", options["crop_share"])
        if options["patch_size"] is None:
            options["patch_size"] = 1 if options["layout"] == "image" else self.patch_size
        if size % check_integer(options, "patch_size", 1):
            raise bad_argument("patch_size", f"a divisor of size {size}", options["patch_size"])
        return options

    def _listing(self, data_dir: Path | None) -> Listing:
        listing = None if data_dir is None else self.find(data_dir)
        if listing is None:
            raise missing_data(
                self.card, data_dir, self.looked_for, self.get_it, _why_not(data_dir)
            )
        if len(listing.classes) > _MOST_CLASSES:
            raise InputError(
                f"{listing.root}: expected at most {_MOST_CLASSES:,} classes, got "
                f"{len(listing.classes):,}"
            )
        return listing

    def _folder(self, listing: Listing, options: dict[str, Any]) -> Path:
        kept = f"{listing.key()}-{options['size']}-{options['color']}-{options['crop_share']:g}"
        return cache_root() / self.card.name / kept

    def _stack(
        self,
        listing: Listing,
        folder: Path,
        name: str,
        entries: Sequence[Entry],
        request: Request,
        options: dict[str, Any],
    ) -> tuple[ImageStack, Array, NDArray[np.int64]]:
        if not entries:
            raise InputError(
                f"task {self.card.name}: {listing.root} has no images for the {name} split; it is "
                "carved from classes of ten images or more"
            )
        size, color = int(options["size"]), str(options["color"])
        labels = [entry.label for entry in entries]
        images = prepare_stack(
            folder / name,
            FileMaker(
                listing.root,
                [entry.path for entry in entries],
                labels,
                size,
                1.0 if name == "train" else float(options["crop_share"]),
                color,
            ),
            len(entries),
            request.progress,
            f"decoding {self.card.title}, {name}",
            max(1, min(1000, _SHARD_BYTES // (size * size * _CHANNELS[color]))),
        )
        return images, Array(np.array(labels, dtype=np.uint16)), np.arange(len(entries))


def _told(listing: Listing) -> str:
    """Describe the images, the classes and the files left out."""
    count, names = len(listing.classes), [in_a_note(name) for name in listing.classes]
    if count > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], f"{count - _MOST_NAMES + 1:,} more"]
    found = (
        f"{sum(map(len, listing.parts.values())):,} images of {count:,} classes in folders "
        f"({', '.join(names)})"
    )
    return "; ".join(filter(None, (found, listing.left_out)))


def _why_not(data_dir: Path | None) -> str:
    if data_dir is None:
        return ""
    packed = sorted(
        path.name
        for path in data_dir.iterdir()
        if path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))
    )
    return f"{packed[0]} there is packed; unpack it" if packed else ""


_PREPROCESSING = (
    "The middle square of each image is resized to size x size (bicubic). Validation and test "
    "use only the share crop_share of the square. layout image: whole images. layout sequence: "
    "patches of patch_size as vectors, or pixels as tokens with color gray and patch_size 1."
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
        real = imagenet_layouts.real_test(
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
    imagenet_layouts.imagenet_listing,
    imagenet_layouts.has_imagenet,
    (
        "train/nXXXXXXXX/",
        "val/nXXXXXXXX/",
        f"or a flat val/ with {imagenet_layouts.SOLUTION} or {imagenet_layouts.ANNOTATIONS}/",
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
    imagenet_layouts.tiny_listing,
    imagenet_layouts.has_tiny,
    ("tiny-imagenet-200/train/", f"tiny-imagenet-200/val/{imagenet_layouts.TINY_LABELS}"),
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
    imagenet_layouts.dogs_listing,
    imagenet_layouts.has_dogs,
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
    oxford_layouts.flowers_listing,
    oxford_layouts.has_flowers,
    (
        "jpg/image_00001.jpg",
        "...",
        oxford_layouts.FLOWER_LABELS,
        oxford_layouts.FLOWER_SPLITS,
        "or all this in flowers-102/",
    ),
    f"102flowers.tgz, {oxford_layouts.FLOWER_LABELS} and {oxford_layouts.FLOWER_SPLITS} from "
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
    oxford_layouts.pets_listing,
    oxford_layouts.has_pets,
    (
        "images/Abyssinian_1.jpg",
        "...",
        *oxford_layouts.PET_LISTS.values(),
        "or all this in oxford-iiit-pet/",
    ),
    "images.tar.gz and annotations.tar.gz from https://www.robots.ox.ac.uk/~vgg/data/pets, "
    "unpacked",
    patch_size=16,
)
