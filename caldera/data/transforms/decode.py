"""Compressed images to arrays of bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.file_access import check_asked
from caldera.base.registry import optional_import
from caldera.base.threads import parallel_for
from caldera.data.random_draws import Draw
from caldera.data.sources.base import Array
from caldera.data.sources.file_formats import LabelledImage
from caldera.data.transforms.stage import Transform
from caldera.errors import ConfigError, DataError

# Only these are tried: for some others Pillow starts programs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# Eight bits per channel; deeper pixels would be truncated silently.
_MODES = frozenset({"1", "CMYK", "L", "LA", "P", "RGB", "RGBA", "YCbCr"})
_MODE_OF_CHANNELS = {1: "L", 3: "RGB"}
# As it is in the file, in the colours that are wanted, and as an array.
_BYTES_A_PIXEL = 10
# The decoding of smaller images is mostly Python, which threads only slow down.
_PIXELS_FOR_THREADS = 1 << 14
_MOST_LISTED = 20


class ImageSize(NamedTuple):
    """The size of an image in pixels.

    >>> ImageSize(height=4, width=5)
    ImageSize(height=4, width=5)
    """

    height: int
    width: int


def decode_all(
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    channels: int,
    size: ImageSize | None,
    *,
    resize: bool,
    where: str,
    broken: dict[str, str] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Decode images to (samples, channels, height, width), and return their class numbers.

    All must have the size of the first image, or `size`; with `resize` they are resized. All
    unreadable images are named in a single error; or left out and added to `broken`, with the
    reason.
    """
    decode = Decoder(channels, where)
    size = size or decode.size(images[0].read(), images[0].name)
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
            hint="give a smaller size=(height, width), or in_memory=False",
        ) from None

    def decode_one(number: int, image: LabelledImage) -> None:
        x[number] = decode(image.read(), size, image.name, resize=resize)

    problems = use_images(
        images, decode_one, where, threads=size.height * size.width >= _PIXELS_FOR_THREADS
    )
    numbers = {name: number for number, name in enumerate(classes)}
    y = np.array([numbers[image.label] for image in images], np.int64)
    if not problems:
        return x, y
    if broken is None:
        raise broken_images(list(problems.values()), len(images), where)
    broken |= {images[number].name: str(problems[number]) for number in sorted(problems)}
    kept = np.array([number for number in range(len(images)) if number not in problems])
    return x[kept], y[kept]


def use_images(
    images: Sequence[LabelledImage],
    use: Callable[[int, LabelledImage], None],
    where: str,
    *,
    threads: bool = True,
) -> dict[int, DataError]:
    """Call `use` with each image and its number; the errors by number, unless none is whole."""
    problems: dict[int, DataError] = {}

    def use_share(worker: int, workers: int) -> None:
        for number in range(worker, len(images), workers):
            try:
                use(number, images[number])
            except DataError as error:
                problems[number] = error

    parallel_for(use_share, len(images)) if threads else use_share(0, 1)
    if problems and len(problems) == len(images):
        raise broken_images(list(problems.values()), len(images), where)
    return problems


def broken_images(problems: Sequence[DataError], count: int, where: str) -> DataError:
    """Return the error for images of which some, or one, cannot be read."""
    hint = "leave it out with skip_broken=True (--skip-broken)"
    if len(problems) == 1:
        return DataError(f"{problems[0]}; {hint}" if count > 1 else str(problems[0]))
    listed = "\n  ".join(str(each).removeprefix(where).strip() for each in problems[:_MOST_LISTED])
    more = len(problems) - _MOST_LISTED
    return DataError.build(
        where,
        expected=f"{count} images that can be read",
        got=f"{len(problems)} that cannot:\n  {listed}"
        + (f"\n  and {more} more" if more > 0 else ""),
        hint=hint.replace("it", "them", 1),
    )


@dataclass(frozen=True)
class Decode(Transform):
    """Encoded images (JPEG, PNG, ...) become bytes of shape (channels, height, width).

    All are brought to `size` (height, width), or must have one size if none is given. `channels` is
    3 for colours and 1 for shades of grey. Needs Pillow.

    >>> import io
    >>> import numpy as np
    >>> from PIL import Image
    >>> from caldera import data
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (5, 4)).save(file, "PNG")
    >>> data.Decode()(np.array([file.getvalue()], object), data.Draw()).shape
    (1, 3, 4, 5)
    """

    size: tuple[int, int] | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        check_decoding("data.Decode", self.size, self.channels)

    def __call__(self, x: Array, draw: Draw) -> NDArray[np.uint8]:
        require(
            x.dtype == object,
            "data.Decode",
            "encoded images",
            f"arrays of {x.dtype} {x.shape[1:]}",
            error=DataError,
        )
        decode = Decoder(self.channels, "data.Decode")
        size = decode.size(x[0]) if self.size is None else ImageSize(*self.size)
        images = np.empty((len(x), self.channels, *size), np.uint8)
        for number, content in enumerate(x):
            images[number] = decode(content, size, resize=self.size is not None)
        return images


def check_decoding(where: str, size: tuple[int, int] | None, channels: int) -> None:
    """Raise an error unless images can be decoded to this size and number of channels.

    >>> check_decoding("data.Decode", (32, 32), 2)
    Traceback (most recent call last):
    caldera.errors.ConfigError: data.Decode: expected 1 or 3 channels, got 2
    """
    require(channels in _MODE_OF_CHANNELS, where, "1 or 3 channels", repr(channels))
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ConfigError.build(where, expected="size=(height, width)", got=repr(size))


class Decoder:
    """Image decoder with Pillow; every fault of an image is a `DataError` with its name."""

    def __init__(self, channels: int, where: str) -> None:
        self._pillow = optional_import("PIL.Image", "pillow", where)
        self._mode = _MODE_OF_CHANNELS[channels]
        self._where = where

    def size(self, content: bytes, name: str = "") -> ImageSize:
        """Return the size of an image, which is not decoded."""
        return self._use(content, name, lambda image: ImageSize(image.height, image.width))

    def __call__(
        self, content: bytes, size: ImageSize, name: str = "", *, resize: bool = False
    ) -> NDArray[np.uint8]:
        """Return an image as (channels, height, width)."""

        def pixels(image: Any) -> NDArray[np.uint8]:
            found = ImageSize(image.height, image.width)
            if found != size and not resize:
                raise DataError.build(
                    f"{self._where} {name}".rstrip(),
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
        where = f"{self._where} {name}".rstrip()
        try:
            with self._pillow.open(io.BytesIO(content), formats=_FORMATS) as image:
                # Only the header has been read so far.
                check_asked(_BYTES_A_PIXEL * image.width * image.height, where, held=len(content))
                require(
                    image.mode in _MODES,
                    where,
                    "8 bits a channel",
                    f"pixels of kind {image.mode}",
                    error=DataError,
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
