"""Tests of images in a folder: pixels, accepted files and stored copies."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import Write, load, pixels_of
from PIL import Image

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import image_files, image_folder, imagenet_layouts
from rifflemix.lab.tasks.images.image_listing import Entry, Listing

# Pixels.


@pytest.fixture
def pets(data: Path, write: Write) -> Path:
    for pet in ("cat", "dog"):
        for number in range(10):
            write(data / f"{pet}.{number}.jpg")
    return data


def image_of(path: Path, size: int, share: float = 1.0, color: str = "rgb") -> np.ndarray:
    return image_files.read_image(path, size, share, color)


def test_images_are_center_cropped_to_a_square(data: Path, write: Write) -> None:
    pixels = write(data / "x.png", height=10, width=16)
    assert np.array_equal(image_of(data / "x.png", 10), pixels[:, 3:13])
    assert np.array_equal(image_of(data / "x.png", 6, 0.6), pixels[2:8, 5:11])
    tall = write(data / "y.png", height=20, width=8)
    assert np.array_equal(image_of(data / "y.png", 8), tall[6:14])
    # Equal to resizing the whole image before the crop.
    wide = write(data / "z.png", height=10, width=20)
    whole = Image.fromarray(wide).resize((8, 4), Image.Resampling.BICUBIC)
    assert np.array_equal(image_of(data / "z.png", 4), np.asarray(whole)[:, 2:6])


def test_kinds_of_pixels(data: Path, write: Write) -> None:
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    three = np.stack([gray] * 3, axis=-1)
    saved = {
        "gray.png": Image.fromarray(gray),
        "gray.bmp": Image.fromarray(gray),
        "alpha.png": Image.merge("LA", (Image.fromarray(gray), Image.new("L", (8, 8), 7))),
        "gray.gif": Image.fromarray(gray),
        "cmyk.tif": Image.merge("RGB", [Image.fromarray(gray)] * 3).convert("CMYK"),
    }
    for name, image in saved.items():
        image.save(data / name)
        assert np.array_equal(image_of(data / name, 8), three), name
        assert np.array_equal(image_of(data / name, 8, color="gray"), gray), name
    palette = Image.fromarray(three).quantize(8)
    colors = np.asarray(palette.convert("RGB"))
    palette.save(data / "palette.png", transparency=bytes(range(8)))
    assert np.array_equal(image_of(data / "palette.png", 8), colors)
    bits = Image.fromarray(gray > 100)
    bits.save(data / "bits.png")
    assert set(np.unique(image_of(data / "bits.png", 8))) == {0, 255}


def test_crop_share_applies_to_validation_and_test(pets: Path, write: Write) -> None:
    for pet in ("cat", "dog"):
        for number in range(10):
            write(pets / f"{pet}.{number}.jpg", 16, 16)
    whole, shared = (load(pets, "dogs_vs_cats", crop_share=share) for share in (1.0, 0.5))
    assert pixels_of(whole, "train") == pixels_of(shared, "train")
    assert not pixels_of(whole, "test") & pixels_of(shared, "test")
    listing = imagenet_layouts.dogs_listing(pets)
    assert listing is not None
    path = pets / listing.splits()[0]["test"][0].path
    pixels = np.asarray(Image.open(path))
    assert np.array_equal(shared.split("test").images[0], pixels[4:12, 4:12])


def test_gray_tokens_and_patches(pets: Path) -> None:
    tokens = load(pets, "dogs_vs_cats", layout="sequence", color="gray", patch_size=1)
    assert (tokens.input_kind, tokens.vocab_size, tokens.max_length) == ("tokens", 256, 64)
    assert tokens.split("train")[0][0].shape == (64,)
    patches = load_task("dogs_vs_cats", data_dir=pets, size=32)
    assert (patches.input_kind, patches.num_features, patches.max_length) == ("vectors", 768, 4)
    assert patches.options["patch_size"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 7}, r"size: .*\b8\b.*\b4096\b.*got 7\b"),
        ({"size": "8"}, "size: .*got '8'"),
        ({"layout": "sequence", "patch_size": 3}, r"patch_size: .*\b8\b"),
        ({"patch_size": 4}, r"patch_size: .*\b1\b.*'image'"),
        ({"crop_share": 1.5}, r"crop_share: .*\b0\b.*\b1\b"),
        ({"crop_share": 0}, r"crop_share: .*\b0\b"),
        ({"color": "grey"}, "gray.*got 'grey'"),
        ({"augment": "mixup"}, "augment"),
        (
            {"layout": "sequence", "augment": "crop_flip", "patch_size": 4},
            "augment: .*got 'crop_flip'",
        ),
    ],
    ids=str,
)
def test_bad_options_are_refused(pets: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(pets, "dogs_vs_cats", **options)


# Accepted files.


def chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def png(width: int, height: int, bits: int = 8, color: int = 0) -> bytes:
    """Build a PNG file with a header and without pixels."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 50))
        + chunk(b"IEND", b"")
    )


def jpeg() -> bytes:
    content = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, format="JPEG")
    return content.getvalue()


def icon() -> bytes:
    content = io.BytesIO()
    Image.new("L", (16, 16)).save(content, format="ICO")
    return content.getvalue()


def tiff(bits: int) -> bytes:
    """Build an RGB TIFF file of 8 x 8 black pixels."""
    pixels = bytes(8 * 8 * 3 * bits // 8)
    end = 8 + 2 + 9 * 12 + 4
    numbers = {256: 8, 257: 8, 258: end, 259: 1, 262: 2, 273: end + 6, 277: 3, 278: 8}
    entries = [struct.pack("<HHII", tag, 3, 1, value) for tag, value in numbers.items()]
    entries[2] = struct.pack("<HHII", 258, 3, 3, end)
    entries.append(struct.pack("<HHII", 279, 4, 1, len(pixels)))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries)
    return head + bytes(4) + struct.pack("<3H", bits, bits, bits) + pixels


def ppm(kind: bytes, most: int) -> bytes:
    """Build a black RGB file of 8 x 8 pixels.

    Pixels are text, or one or two bytes per channel.
    """
    pixels = b"0 " * 192 if kind == b"P3" else bytes(192 if most < 256 else 384)
    return kind + b"\n# 9 9\n8 8 # of 8\n%d\n" % most + pixels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", r"dog\.7\.jpg: .*damaged", id="empty"),
        pytest.param(b"<html>not found</html>", r"dog\.7\.jpg: .*damaged", id="text"),
        pytest.param(jpeg()[:2000], r"dog\.7\.jpg: .*damaged", id="half a JPEG"),
        pytest.param(png(8, 8)[:40], r"dog\.7\.jpg: .*damaged", id="half a header"),
        pytest.param(png(8, 8, bits=3), r"dog\.7\.jpg: .*damaged", id="odd header"),
        pytest.param(icon(), "JPEG.*PNG.*BMP.*PPM.*TIFF.*WEBP.*GIF", id="another format"),
        pytest.param(png(60000, 60000), r"dog\.7\.jpg.*\b178,956,970\b", id="bomb"),
        pytest.param(
            png(8, 8)[:8] + chunk(b"tEXt", b"a\0b") + png(8, 8, bits=16, color=2)[8:],
            "PNG",
            id="late header",
        ),
    ],
)
def test_damaged_images(pets: Path, content: bytes, message: str) -> None:
    (pets / "dog.7.jpg").write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        load(pets, "dogs_vs_cats")
    assert "dog.7.jpg" in str(raised.value)
    assert "\n" not in str(raised.value)


# Pillow reduces all images except gray images to 8 bits when it opens them.
DEEP = {
    "gray": png(8, 8, bits=16, color=0),
    "RGB": png(8, 8, bits=16, color=2),
    "gray and alpha": png(8, 8, bits=16, color=4),
    "RGBA": png(8, 8, bits=16, color=6),
    "TIFF": tiff(16),
    "PPM": ppm(b"P6", 65535),
    "PPM of 9 bits": ppm(b"P6", 256),
    "PPM as text": ppm(b"P3", 65535),
}


@pytest.mark.parametrize("content", DEEP.values(), ids=DEEP)
def test_more_than_8_bits_are_refused(data: Path, content: bytes) -> None:
    (data / "x.png").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.png: .*\b8\b.*got (16|9)\b"):
        image_of(data / "x.png", 8)


@pytest.mark.parametrize("content", [tiff(8), ppm(b"P6", 255), ppm(b"P6", 15), ppm(b"P3", 255)])
def test_8_bits_and_fewer_are_read(data: Path, content: bytes) -> None:
    (data / "x.png").write_bytes(content)
    assert np.array_equal(image_of(data / "x.png", 8), np.zeros((8, 8, 3)))


def test_float_images_are_refused(data: Path) -> None:
    Image.fromarray(np.zeros((8, 8), np.float32)).save(data / "x.tif")
    with pytest.raises(InputError, match=r"\b8\b.*got 32\b"):
        image_of(data / "x.tif", 8)


def test_images_that_pillow_does_not_decode_are_refused(
    data: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    pixels = write(data / "x.png", 8, 10)
    assert np.array_equal(image_of(data / "x.png", 8), pixels[:, 1:9])
    write(data / "x.png", 9, 9)
    with pytest.raises(InputError, match=r"x\.png: .*\b80\b"):
        image_of(data / "x.png", 8)


def test_without_pillow(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "PIL" or name.startswith("PIL.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"'rifflemix\[images\]'"):
        load(pets, "dogs_vs_cats")


# Stored copies.


def test_images_are_decoded_once(pets: Path, cache: Path) -> None:
    folder = prepare_task("dogs_vs_cats", data_dir=pets, size=8, layout="image")
    assert folder is not None
    assert folder.is_relative_to(cache)
    for path in pets.iterdir():
        content, time = path.read_bytes(), path.stat().st_mtime_ns
        path.write_bytes(bytes(len(content)))
        os.utime(path, ns=(time, time))
    assert len(load(pets, "dogs_vs_cats").split("train")) == 16


def test_old_caches_of_formats_with_more_than_8_bits_are_not_used() -> None:
    """Keep copies of JPEG and BMP files; `before` is their key in the older cache."""
    for ending, is_kept in ((".JPEG", True), (".bmp", True), (".png", False), (".TIF", False)):
        entry = Entry(f"bee/0{ending}", 0, 12, 34)
        before = hashlib.blake2b(f"bee|wasptrain\n{entry}\n".encode(), digest_size=12)
        listing = Listing(Path(), ("bee", "wasp"), {"train": (entry,)})
        assert (listing.key() == before.hexdigest()) is is_kept


def test_a_changed_file_is_read_again(pets: Path, write: Write) -> None:
    before = load(pets, "dogs_vs_cats").fingerprint()
    pixels = write(pets / "cat.3.jpg")
    task = load(pets, "dogs_vs_cats")
    assert task.fingerprint() != before
    assert pixels.tobytes() in {content for s in SPLITS for content, _ in pixels_of(task, s)}


def test_max_samples_keeps_the_first_samples(pets: Path) -> None:
    few = load(pets, "dogs_vs_cats", max_samples=3)
    many = load(pets, "dogs_vs_cats")
    for index in range(3):
        one, other = few.split("train")[index], many.split("train")[index]
        assert torch.equal(one[0], other[0])
        assert one[1] == other[1]


@pytest.mark.slow
def test_many_shards_need_few_open_files(
    data: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "_SHARD_BYTES", 8 * 8 * 3)  # one image per shard
    for pet in ("cat", "dog"):
        for number in range(40):
            write(data / f"{pet}.{number}.jpg")
    whole = load(data, "dogs_vs_cats")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 110, limits[1]))
    try:
        task = load(data, "dogs_vs_cats")
        assert len({task.split("train").images[row].tobytes() for row in range(64)}) == 64
        assert task.fingerprint() == whole.fingerprint()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_shard_size_does_not_change_the_data(
    pets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = load(pets, "dogs_vs_cats").fingerprint()
    monkeypatch.setattr(image_folder, "_SHARD_BYTES", 3 * 8 * 8 * 3)
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "other"))
    assert load(pets, "dogs_vs_cats").fingerprint() == one


def test_full_disk_is_reported(pets: Path) -> None:
    with pytest.raises(InputError, match=r"\d GB"):
        image_folder.check_room(pets, 10**18)


# Training images with random changes.


def test_resized_crops(pets: Path) -> None:
    task = load(pets, "dogs_vs_cats", augment="resized_crop_flip", size=32)
    batch = task.collate([task.split("train")[0]] * 64)
    changed = task.augment(batch, range(64))["inputs"]
    assert changed.shape == batch["inputs"].shape
    assert torch.equal(changed, task.augment(batch, range(64))["inputs"])
    assert len({image.numpy().tobytes() for image in changed}) == 64
    # Antialiased bilinear weights are an average: no pixel leaves the range.
    assert changed.min() >= batch["inputs"].min() - 1e-5
    assert changed.max() <= batch["inputs"].max() + 1e-5


def test_rectangles_of_resized_crops() -> None:
    from rifflemix.lab.tasks.images.crops import random_rectangle

    rng = np.random.default_rng(0)
    found = np.array([random_rectangle(200, 200, rng) for _ in range(2000)])
    top, left, height, width = found.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 200).all()
    assert (left + width <= 200).all()
    share = height * width / 200**2
    assert 0.075 < share.min() < 0.1
    assert share.max() > 0.9
    ratio = width / height
    assert 0.73 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.36
    assert random_rectangle(4, 400, np.random.default_rng(0))[2:] <= (4, 400)
