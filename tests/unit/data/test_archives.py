"""Archives: plain files come out, in memory; everything else is refused."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from caldera.data.sources.file_formats import BoundedReader, archive_members, images_in_archive
from caldera.errors import DataError
from tests.unit.data.files import survives_damage, tar

FILES = {"train/cat/1.png": b"one", "train/dog/2.png": b"two" * 500, "readme": b""}


def members(path: Path, limit: int = 1 << 20, largest: int = 1 << 16) -> dict[str, bytes]:
    return {str(name): content for name, content in archive_members(path, limit, largest, "unpack")}


@pytest.mark.parametrize("packing", ["", "gz", "xz"])
def test_files_come_out(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(tar(FILES, packing))
    assert members(path) == FILES


@pytest.mark.parametrize("packing", ["", "gz", "xz"])
def test_damage_is_survived(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "archive"
    content = tar({"a/b": b"content", "c": bytes(range(200))}, packing)
    # Without compression there is no checksum, and a cut in the padding loses nothing.
    survives_damage(content, path, lambda: members(path), 3 if packing else 97, bool(packing))


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "a/../../outside", "a\\..\\b", "C:/windows"]
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(tar({name: b"x"}))
    with pytest.raises(DataError, match=r"the path .* no file was unpacked"):
        members(path)


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.GNUTYPE_SPARSE,
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("train/cat/1.png")
    info.type = kind
    info.linkname = "/etc/passwd"
    path = tmp_path / "archive"
    path.write_bytes(tar([info]))
    with pytest.raises(DataError):
        members(path)


def test_sizes_are_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    info = tarfile.TarInfo("big")
    info.size = 1 << 40
    path.write_bytes(gzip.compress(info.tobuf() + bytes(1024)))
    with pytest.raises(DataError, match="'big' of 1099511627776 bytes"):
        members(path)


@pytest.mark.parametrize("size", [-1, -512, -(1 << 40)])
def test_negative_sizes_do_not_hang(tmp_path: Path, size: int) -> None:
    info = tarfile.TarInfo("odd")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (size % (1 << 96)).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "archive"
    path.write_bytes(bytes(header) + bytes(2048))
    with pytest.raises(DataError):
        members(path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_headers_cannot_be_bombs(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("header")
    info.type = kind
    info.size = 200 << 20
    path = tmp_path / "archive"
    path.write_bytes(gzip.compress(info.tobuf() + bytes(20 << 20), compresslevel=1))
    with pytest.raises(DataError, match="at most 1048576 bytes"):
        members(path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_bombs_are_refused(tmp_path: Path, compress) -> None:
    path = tmp_path / "archive"
    path.write_bytes(compress(bytes(20_000_000)))
    with path.open("rb") as file:
        contents = BoundedReader(file, limit=100_000, where="unpack")
        with pytest.raises(DataError, match="at most 100000 bytes of contents"):
            contents.finish()
    many = {f"{number}": bytes(60_000) for number in range(40)}
    path.write_bytes(compress(tar(many, "")))
    with pytest.raises(DataError, match="at most 1048576 bytes"):
        members(path)


def test_a_size_that_is_just_right_is_read(tmp_path: Path) -> None:
    for content in (b"12345", gzip.compress(b"12345"), lzma.compress(b"12345")):
        contents = BoundedReader(io.BytesIO(content), limit=5, where="unpack")
        assert contents.read(100) == b"12345"
        contents.finish()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    for content in (b"no archive", gzip.compress(b"no archive" * 100)):
        path.write_bytes(content)
        with pytest.raises(DataError, match="a tar archive"):
            members(path)
    with pytest.raises(DataError, match="no such file"):
        members(tmp_path / "none")
    with pytest.raises(DataError, match="a folder"):
        members(tmp_path)


def test_members_with_holes_are_refused(tmp_path: Path) -> None:
    # A header may say that a member of 2 bytes has 200 MB.
    info = tarfile.TarInfo("a/1.png")
    info.size = 512
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "a/1.png",
        "GNU.sparse.realsize": str(200 << 20),
    }
    path = tmp_path / "archive.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(info, io.BytesIO(b"0\n" + bytes(510)))
    with pytest.raises(DataError, match="is no plain file"):
        members(path, limit=1 << 30, largest=1 << 30)
    with pytest.raises(DataError, match=r"^load: .* is no plain file"):
        images_in_archive(path, "load")


def test_headers_within_headers_are_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 0
    path = tmp_path / "archive.tar"
    path.write_bytes(info.tobuf(tarfile.USTAR_FORMAT) * 5000 + bytes(1024))
    for read in (lambda: members(path, limit=1 << 30), lambda: images_in_archive(path, "load")):
        with pytest.raises(DataError, match="expected a tar archive"):
            read()
