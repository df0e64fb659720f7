"""Folders of images: read as they are, and what is no image is named."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera import data
from caldera.data.transforms.decode import Decoder, ImageSize
from caldera.errors import ConfigError, DataError
from tests.unit.data.files import picture, survives_damage


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_divided_folder(tmp_path: Path) -> None:
    write(tmp_path, "train/cat/2.png", picture(20, (5, 4)))
    write(tmp_path, "train/cat/1.png", picture(10, (5, 4)))
    write(tmp_path, "train/dog/1.PNG", picture(30, (5, 4)))
    write(tmp_path, "test/dog/1.bmp", picture(40, (5, 4), "BMP"))
    write(tmp_path, "test/bird/1.png", picture(50, (5, 4)))
    write(tmp_path, "train/dog/notes.txt", b"not an image")
    write(tmp_path, "train/.hidden/1.png", b"not an image")
    write(tmp_path, "train/dog/.hidden.png", b"not an image")
    found = data.images(tmp_path)
    assert found.class_names == ("bird", "cat", "dog")
    assert found.shape == (3, 4, 5)
    assert (found.train.x[:, 0, 0, 0] * 255).round().tolist() == [10, 20, 30]
    assert found.train.y is not None
    assert found.test.y is not None
    assert found.train.y.tolist() == [1, 1, 2]
    assert found.test.y.tolist() == [0, 2]


@pytest.mark.parametrize("top", ["", "train/"])
def test_an_undivided_folder_is_split(tmp_path: Path, top: str) -> None:
    for number in range(20):
        write(tmp_path, f"{top}{'ab'[number % 2]}/{number:02}.png", picture(number, (2, 3)))
    found = data.images(tmp_path, test=0.4, seed=1)
    assert (len(found.train), len(found.test), found.shape) == (12, 8, (3, 3, 2))
    shades = (np.concatenate([found.train.x, found.test.x])[:, 0, 0, 0] * 255).round()
    assert sorted(shades.tolist()) == list(range(20))
    assert found.test.y is not None
    assert np.bincount(found.test.y).tolist() == [4, 4]


def test_pixels_are_where_they_belong(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 7, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    for number in range(2):
        write(tmp_path, f"a/{number}.png", file.getvalue())
    found = data.images(tmp_path, test=1)
    raw = found.train.raw_batch(np.array([0]))[0][0]
    np.testing.assert_array_equal(raw, pixels.transpose(2, 0, 1))
    grey = data.images(tmp_path, test=1, channels=1).train.raw_batch(np.array([0]))[0][0]
    np.testing.assert_array_equal(grey[0], np.asarray(Image.fromarray(pixels).convert("L")))


def test_large_images_are_decoded_by_several_threads(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path, f"a/{number}.png", picture(number * 40, (200, 150)))
    with cd.settings.override(threads=3):
        found = data.images(tmp_path, test=0)
    assert found.train.x[:, 1, 7, 9].tolist() == [
        np.float32(number * 40) / np.float32(255) for number in range(6)
    ]


def test_images_are_brought_to_one_size(tmp_path: Path) -> None:
    write(tmp_path, "a/1.png", picture(100, (10, 20)))
    write(tmp_path, "a/2.png", picture(200, (30, 5)))
    with pytest.warns(UserWarning, match=r"2 sizes, 5x30 to 20x10, are resized to 12x20; .*size="):
        chosen = data.images(tmp_path, test=0)
    assert chosen.shape == (3, 12, 20)
    assert "12x20" in chosen.notes[0]
    with pytest.warns(UserWarning, match="12x20"):
        assert data.images(tmp_path, test=1, in_memory=False).shape == (3, 12, 20)
    found = data.images(tmp_path, size=(8, 6), test=0)
    assert found.shape == (3, 8, 6)
    assert found.train.raw_batch(np.arange(2))[0].max(axis=(1, 2, 3)).tolist() == [100, 200]


def test_a_size_that_nobody_gave_is_not_huge(tmp_path: Path) -> None:
    write(tmp_path, "train/a/1.png", picture(1, (400, 1000)))
    write(tmp_path, "test/a/1.png", picture(1, (404, 1000)))
    with pytest.warns(UserWarning, match="resized to 256x103"):
        found = data.images(tmp_path)
    assert found.train.shape == found.test.shape == (3, 256, 103)


@pytest.mark.parametrize("in_memory", [True, False])
def test_broken_images_are_listed_and_left_out(tmp_path: Path, in_memory: bool) -> None:
    for number in range(6):
        write(tmp_path, f"{'ab'[number % 2]}/{number}.png", picture(10 * number, (4, 4)))
    write(tmp_path, "a/7.png", b"no image")
    write(tmp_path, "b/8.png", picture(1, (40, 40))[:60])
    with pytest.raises(
        DataError, match=r"2 that cannot:\s+a/7\.png.*\s+b/8\.png.*skip_broken=True"
    ):
        data.images(tmp_path, size=(4, 4))
    with pytest.warns(UserWarning, match=r"2 broken images left out: a/7\.png, b/8\.png"):
        found = data.images(tmp_path, size=(4, 4), test=2, skip_broken=True, in_memory=in_memory)
    shades = np.concatenate([part.x[:, 0, 0, 0] * 255 for part in (found.train, found.test)])
    assert sorted(shades.round().tolist()) == [0, 10, 20, 30, 40, 50]
    assert found.test.y is not None
    assert found.test.y.tolist() == [0, 1]


def test_where_all_are_broken_nothing_is_left_out(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path, f"a/{number}.png", b"no image")
    with pytest.raises(DataError, match="2 images that can be read, got 2 that cannot"):
        data.images(tmp_path, skip_broken=True)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP"])
def test_damaged_images_are_survived(tmp_path: Path, form: str) -> None:
    decode = Decoder(3, "data.images")
    path = tmp_path / "image"
    content = picture(99, (3, 4), form)
    survives_damage(
        content,
        path,
        lambda: decode(path.read_bytes(), ImageSize(4, 3), "1.png"),
        every=max(1, len(content) // 40),
        must_refuse=False,
    )
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"1\.png: expected an image"):
        decode(path.read_bytes(), ImageSize(4, 3), "1.png")


def png_that_claims(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(50_000, 3_000), (1 << 30, 1 << 30)])
def test_images_that_claim_to_be_huge_are_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    write(tmp_path, "a/1.png", png_that_claims(*size))
    with pytest.raises(DataError, match=r"a/1\.png"):
        data.images(tmp_path, size=(4, 4))


def test_how_large_an_image_may_be_is_a_setting(tmp_path: Path) -> None:
    write(tmp_path, "a/1.png", png_that_claims(1000, 1000))
    with (
        cd.settings.override(file_limit=1 << 20),
        pytest.raises(DataError, match=r"a/1\.png: .*file_limit = 10000000"),
    ):
        data.images(tmp_path, size=(4, 4))


def test_more_than_the_memory_limit_is_refused(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path, f"a/{number}.png", picture(1, (10, 10)))
    with (
        cd.settings.override(memory_limit=1000),
        pytest.raises(DataError, match="room for 1200 bytes"),
    ):
        data.images(tmp_path)


def test_deep_pixels_are_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(file, "PNG")
    write(tmp_path, "a/1.png", file.getvalue())
    with pytest.raises(DataError, match="8 bits a channel"):
        data.images(tmp_path)


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    with pytest.raises(DataError, match=r"a/1\.jpg: expected an image"):
        data.images(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, "a/2.png", picture(1))
    os.mkfifo(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match="something else"):
        data.images(tmp_path)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder at"):
        data.images(tmp_path / "none")
    with pytest.raises(DataError, match="one folder for each class"):
        data.images(tmp_path)
    for size in ((4,), (0, 4), (4, 4, 4)):
        with pytest.raises(ConfigError, match="height, width"):
            data.images(tmp_path, size=size)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        data.images(tmp_path, channels=2)
