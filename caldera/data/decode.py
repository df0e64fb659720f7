"""Compressed images to arrays of bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caldera.config import settings
from caldera.errors import DataError
from caldera.optional import optional_import
from caldera.threads import parallel_for

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
# Only these are tried: for some others Pillow starts programs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# Eight bits a channel; deeper pixels would be cut off silently.
_MODES = frozenset({"1", "CMYK", "L", "LA", "P", "RGB", "RGBA", "YCbCr"})
_MODE_OF_CHANNELS = {1: "L", 3: "RGB"}
_MOST_PIXELS = 100_000_000
# The decoding of smaller images is mostly Python, which threads only slow down.
_PIXELS_FOR_THREADS = 1 << 14


class Size(NamedTuple):
    """The size of an image in pixels.

    >>> Size(height=4, width=5)
    Size(height=4, width=5)
    """

    height: int
    width: int


class Labelled(NamedTuple):
    """An image that is not read yet, and its class."""

    name: str
    label: str
    read: Callable[[], bytes]


def class_names(images: Sequence[Labelled]) -> tuple[str, ...]:
    """The classes of images; their order gives the class numbers.

    >>> class_names([Labelled("1.png", "dog", bytes), Labelled("2.png", "cat", bytes)])
    ('cat', 'dog')
    """
    return tuple(sorted({image.label for image in images}))


def decode_all(
    images: Sequence[Labelled],
    classes: Sequence[str],
    channels: int,
    size: Size | None,
    *,
    resize: bool,
    where: str,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as (samples, channels, height, width), and their class numbers.

    All must have the size of the first, or `size`; with `resize` they are brought to it.
    """
    decode = Decoder(channels, where)
    first_size = decode.size(images[0].read(), images[0].name)
    size = size or first_size
    needed = len(images) * channels * size.height * size.width
    try:
        if settings.memory_limit is not None and needed > settings.memory_limit:
            raise MemoryError(f"settings.memory_limit is {settings.memory_limit}")
        x = np.empty((len(images), channels, *size), np.uint8)
    except MemoryError as error:
        raise DataError.build(
            where,
            expected=f"room for {needed} bytes of images",
            got=str(error),
            hint="give a smaller size=(height, width)",
        ) from None

    def decode_share(worker: int, workers: int) -> None:
        for number in range(worker, len(images), workers):
            image = images[number]
            x[number] = decode(image.read(), size, image.name, resize=resize)

    if first_size.height * first_size.width < _PIXELS_FOR_THREADS:
        decode_share(0, 1)
    else:
        parallel_for(decode_share, len(images))
    numbers = {name: number for number, name in enumerate(classes)}
    y = np.array([numbers[image.label] for image in images], np.int64)
    return x, y


class Decoder:
    """Decodes images with Pillow; whatever is wrong with one is a `DataError` with its name."""

    def __init__(self, channels: int, where: str) -> None:
        self._pillow = optional_import("PIL.Image", "pillow", where)
        self._mode = _MODE_OF_CHANNELS[channels]
        self._where = where

    def size(self, content: bytes, name: str) -> Size:
        """The size of an image, which is not decoded."""
        return self._use(content, name, lambda image: Size(image.height, image.width))

    def __call__(
        self, content: bytes, size: Size, name: str, *, resize: bool = False
    ) -> NDArray[np.uint8]:
        """An image as (channels, height, width)."""

        def pixels(image: Any) -> NDArray[np.uint8]:
            found = Size(image.height, image.width)
            if found != size and not resize:
                raise DataError.build(
                    f"{self._where} {name}",
                    expected=f"an image of {size.height}x{size.width}",
                    got=f"{found.height}x{found.width}",
                    hint="size=(height, width) brings images to one size",
                )
            converted = image if image.mode == self._mode else image.convert(self._mode)
            if found != size:
                converted = converted.resize((size.width, size.height))
            array = np.asarray(converted)
            return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

        return self._use(content, name, pixels)

    def _use(self, content: bytes, name: str, function: Callable[[Any], Any]) -> Any:
        where = f"{self._where} {name}"
        try:
            with self._pillow.open(io.BytesIO(content), formats=_FORMATS) as image:
                # The header alone has been read so far.
                if image.width * image.height > _MOST_PIXELS:
                    raise DataError.build(
                        where,
                        expected=f"at most {_MOST_PIXELS} pixels",
                        got=f"{image.height}x{image.width}",
                    )
                if image.mode not in _MODES:
                    raise DataError.build(
                        where, expected="8 bits a channel", got=f"pixels of kind {image.mode}"
                    )
                return function(image)
        except DataError:
            raise
        except Exception as error:
            # Pillow has a different exception for every kind of damage.
            raise DataError.build(
                where,
                expected="an image",
                got=str(error) or type(error).__name__,
                hint="the file is truncated, damaged or of another kind",
            ) from None
