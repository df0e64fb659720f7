"""C of Debian's source packages as LLVM IR: what `inst2vec.py` learns from and is tested on.

    python benchmarks/programs/code_corpus.py FOLDER      # downloads, unpacks, compiles; then tells

`apt-get source --download-only` fetches the packages that FOLDER lacks, from where the machine has
its own from; the lists of sources lie in FOLDER, and nothing of the machine changes. Nothing of a
package is run: no configure, no make. What configure would have written is made of its
`config.h.in`: headers are asked of clang, the rest is in the table below. A file that does not
compile is counted and told, and what was compiled is kept (FOLDER/ir).

Files of training are compiled twice, with -O1 and with one of `OTHER_FLAGS`, in turn: so there are
statements with and without flags, as in inst2vec's data. Functions that are to be told apart are
those of -O1.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from caldera import code
from caldera.errors import CalderaError
from caldera.io.files import created

FLAGS = ("-O1",)
OTHER_FLAGS = (("-O0",), ("-O2", "-ffast-math"), ("-O3",), ("-O2",))
ALWAYS = ("-D_GNU_SOURCE", "-fno-stack-protector")
NOT_SOURCES = re.compile(
    r"(^|/)(test\w*|example\w*|.*bench\w*|.*fuzz\w*|.*test|.*tort)(/|\.c$)|test_"
)
MOST_STATEMENTS = 40_000
"""Of one file: a few are a library in one file, or tables."""


@dataclass(frozen=True)
class Package:
    """A Debian source package, or a part of one."""

    source: str
    files: tuple[str, ...]
    purpose: str | None = None
    """What its functions are for; None if they only teach what statements mean."""
    part: str = "train"
    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """(folder or file, pattern): headers that its build gathers in a folder, or gives a name."""
    most: int = 200
    """Files; evenly out of all, if there are more."""


_GSL = {
    "source": "gsl",
    "include": (".",),
    "links": (("gsl", "**/gsl_*.h"),),
    "defines": (
        "HAVE_DECL_ISNAN",
        "HAVE_DECL_ISINF",
        "HAVE_DECL_ISFINITE",
        "HAVE_DECL_HYPOT",
        "HAVE_DECL_LDEXP",
        "HAVE_DECL_FREXP",
        "HAVE_DECL_EXPM1",
        "HAVE_DECL_LOG1P",
        "HAVE_DECL_ACOSH",
        "HAVE_DECL_ASINH",
        "HAVE_DECL_ATANH",
        "RELEASED",
        "HAVE_PRINTF_LONGDOUBLE",
    ),
}
_FILTERS = (
    "LZMA1",
    "LZMA2",
    "X86",
    "POWERPC",
    "IA64",
    "ARM",
    "ARMTHUMB",
    "ARM64",
    "SPARC",
    "DELTA",
)
_XZ = (
    *(f"HAVE_{coder}_{each}" for coder in ("ENCODER", "DECODER") for each in _FILTERS),
    "HAVE_ENCODERS",
    "HAVE_DECODERS",
    "HAVE_CHECK_CRC32",
    "HAVE_CHECK_CRC64",
    "HAVE_CHECK_SHA256",
    "HAVE_MF_HC3",
    "HAVE_MF_HC4",
    "HAVE_MF_BT2",
    "HAVE_MF_BT3",
    "HAVE_MF_BT4",
    "HAVE_STDBOOL_H",
    "HAVE__BOOL",
    "MYTHREAD_POSIX",
    "HAVE_LZIP_DECODER",
    "SIZEOF_SIZE_T=8",
    "ASSUME_RAM=128",
    "TUKLIB_SYMBOL_PREFIX=lzma_",
    'PACKAGE_NAME="xz"',
    "HAVE_CLOCK_GETTIME",
    "HAVE_CLOCK_MONOTONIC",
    "NDEBUG",
)
_ARCH = f"arch/{platform.machine()}"
PACKAGES = (
    Package("zlib", ("*.c",), "compression"),
    Package("bzip2", ("*.c",), "compression"),
    Package("lz4", ("lib/*.c",), "compression", include=("lib",)),
    Package("libzstd", ("lib/*/*.c",), "compression", include=("lib", "lib/common")),
    Package(
        "xz-utils",
        ("src/liblzma/**/*.c",),
        "compression",
        "test",
        defines=_XZ,
        include=(
            "src/common",
            *(
                f"src/liblzma/{each}"
                for each in (
                    "api",
                    "common",
                    "check",
                    "lz",
                    "lzma",
                    "rangecoder",
                    "delta",
                    "simple",
                )
            ),
        ),
    ),
    Package(**_GSL, files=("specfunc/*.c", "cdf/*.c"), purpose="special functions"),
    Package(
        "musl",
        ("src/math/*.c", "src/complex/*.c"),
        "special functions",
        "test",
        include=(_ARCH, "arch/generic", "src/internal", "src/include", "made", "include"),
        flags=("-nostdinc", "-std=c99", "-ffreestanding", "-D_XOPEN_SOURCE=700"),
    ),
    Package(
        "expat",
        ("expat/lib/*.c",),
        "parsing",
        include=("expat/lib",),
        defines=("XML_POOR_ENTROPY", "XML_NS", "XML_DTD", "XML_CONTEXT_BYTES=1024"),
    ),
    Package(
        "libyaml",
        ("src/*.c",),
        "parsing",
        include=("include",),
        defines=(
            "YAML_VERSION_MAJOR=0",
            "YAML_VERSION_MINOR=2",
            "YAML_VERSION_PATCH=5",
            'YAML_VERSION_STRING="0.2.5"',
        ),
    ),
    Package("mxml", ("*.c",), "parsing", defines=('MXML_VERSION="3"',)),
    Package(
        "yajl",
        ("src/*.c",),
        "parsing",
        include=("linked",),
        links=(("linked/yajl", "src/api/*.h"),),
    ),
    Package(
        "jansson",
        ("src/*.c",),
        "parsing",
        "test",
        include=("src", "android"),
        links=(("src/jansson_private_config.h", "android/jansson_config.h"),),
        defines=("HAVE_STDINT_H",),
    ),
    Package("cjson", ("*.c",), "parsing", "test"),
    Package(**_GSL, files=("linalg/*.c", "eigen/*.c", "multifit/*.c"), purpose="linear algebra"),
    Package(
        "lapack",
        ("LAPACKE/src/*.c", "LAPACKE/utils/*.c"),
        "linear algebra",
        include=("LAPACKE/include",),
        most=150,
        links=(
            (
                "LAPACKE/include/lapacke_mangling.h",
                "LAPACKE/include/lapacke_mangling_with_flags.h.in",
            ),
        ),
    ),
    Package(
        "meschach",
        ("*.c",),
        "linear algebra",
        "test",
        flags=("-std=gnu89", "-Wno-int-conversion"),
        defines=("ANSI_C", "HAVE_PROTOTYPES_IN_STRUCT"),
    ),
    Package(
        "libtomcrypt",
        ("src/**/*.c",),
        "cryptography",
        include=("src/headers",),
        defines=("LTC_SOURCE", "LTC_NO_TEST"),
    ),
    Package("nettle", ("*.c",), "cryptography", "test"),
    Package("libtommath", ("*.c",), "big integers"),
    Package("gmp", ("mini-gmp/*.c",), "big integers", "test", include=("mini-gmp",)),
    Package(
        **_GSL,
        most=300,
        files=tuple(
            f"{each}/*.c"
            for each in (
                "fft",
                "wavelet",
                "rng",
                "randist",
                "integration",
                "interpolation",
                "statistics",
                "sort",
                "poly",
                "roots",
                "multimin",
                "ode-initval2",
                "matrix",
                "vector",
                "cblas",
                "histogram",
            )
        ),
    ),
    Package("lua5.4", ("src/*.c",)),
    Package("libpng1.6", ("*.c",), include=("scripts",)),
    Package(
        "fftw3",
        ("kernel/*.c", "dft/*.c", "rdft/*.c", "dft/scalar/codelets/*.c"),
        include=(".", "dft", "rdft", "kernel"),
        most=120,
        defines=(
            "HAVE_GETTIMEOFDAY",
            "SIZEOF_VOID_P=8",
            "SIZEOF_SIZE_T=8",
            "SIZEOF_PTRDIFF_T=8",
            "SIZEOF_INT=4",
            "SIZEOF_UNSIGNED_INT=4",
            "SIZEOF_LONG=8",
            "SIZEOF_UNSIGNED_LONG=8",
            "SIZEOF_LONG_LONG=8",
            "SIZEOF_UNSIGNED_LONG_LONG=8",
            "SIZEOF_FLOAT=4",
            "SIZEOF_DOUBLE=8",
            "HAVE_UINTPTR_T",
            'PACKAGE="fftw"',
            'PACKAGE_VERSION="3"',
            'FFTW_CC="clang"',
        ),
    ),
)
"""By what functions are for, packages for training first and those of the test after them."""


@dataclass(frozen=True)
class Module:
    """The statements of a compiled file, by function, and which of them depend on each other (they
    are counted through all functions)."""

    functions: list[list[str]]
    edges: np.ndarray

    @property
    def words(self) -> Iterator[str]:
        """All statements."""
        return chain.from_iterable(self.functions)

    def __len__(self) -> int:
        return sum(map(len, self.functions))


@dataclass
class Compiled:
    """The modules of a package, and what became of its files."""

    package: Package
    modules: list[Module] = field(default_factory=list)
    others: list[Module] = field(default_factory=list)
    """The same files with other flags."""
    archive: str = ""
    files: int = 0
    failed: int = 0
    problem: Counter[str] = field(default_factory=Counter)
    """What clang said first, by how many files it said it of."""

    @property
    def statements(self) -> int:
        """With the usual flags."""
        return sum(map(len, self.modules))

    def __str__(self) -> str:
        purpose = self.package.purpose or "-"
        most = "; ".join(f"{n} x {text}" for text, n in self.problem.most_common(1))
        most = most[:90].replace("|", " ")
        return (
            f"| {self.archive or self.package.source} | {purpose} | {self.package.part} "
            f"| {self.files} | {self.failed} | {self.statements:,} | {most} |"
        )


HEADINGS = (
    "| archive | purpose | part | files | not compiled | statements | most frequent reason |\n"
    "|---|---|---|---|---|---|---|"
)


# --- sources


def fetch(folder: Path) -> None:
    """Have the archives of all packages in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = dict.fromkeys(package.source for package in PACKAGES)
    missing = [each for each in sources if not _archives(folder, each)]
    if missing:
        options = _lists_of_sources(folder)
        # All at once, and if apt does not know one of them, one by one.
        _apt(folder, "source", *options, "--download-only", *missing)
        for each in missing:
            if not _archives(folder, each):
                _apt(folder, "source", *options, "--download-only", each)


def _lists_of_sources(folder: Path) -> list[str]:
    """apt-get's options for lists of source packages in the folder, from the machine's own places
    for packages."""
    apt = (folder / "apt").resolve()
    places, lists, cache = apt / "sources.list.d", apt / "lists", apt / "cache"
    options = [
        f"-oDir::Etc::SourceList={apt / 'none'}",
        f"-oDir::Etc::SourceParts={places}",
        f"-oDir::State::Lists={lists}",
        f"-oDir::Cache={cache}",
        "-oAPT::Sandbox::User=root",
    ]
    if not lists.exists():
        for each in (places, lists / "partial", cache / "archives" / "partial"):
            each.mkdir(parents=True, exist_ok=True)
        system = Path("/etc/apt")
        for given in [system / "sources.list", *sorted((system / "sources.list.d").glob("*"))]:
            if given.is_file() and given.suffix in (".list", ".sources"):
                wanted = re.sub(r"^deb(?= )", "deb-src", given.read_text(), flags=re.MULTILINE)
                wanted = re.sub(r"^Types:.*$", "Types: deb-src", wanted, flags=re.MULTILINE)
                with created(places / given.name, "w", "corpus") as file:
                    file.write(wanted)
        _apt(folder, "update", *options)
    return options


def _apt(folder: Path, *words: str) -> None:
    command = ["apt-get", "-qq", *words]
    subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=600)


def unpacked(source: str, folder: Path) -> tuple[Path, str] | str:
    """Where a package is unpacked, and the name of its archive; or why it is not."""
    archives = _archives(folder, source)
    if not archives:
        return f"apt-get source found no {source}"
    target = folder / "sources" / source
    if not target.exists():
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            with tarfile.open(archives[0]) as opened:
                opened.extractall(beside, filter="data")
        except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            return f"{archives[0].name}: {error}"
        beside.rename(target)
    inside = list(target.iterdir())
    return (inside[0] if len(inside) == 1 else target), archives[0].name


def _archives(folder: Path, source: str) -> list[Path]:
    found = sorted(folder.glob(f"{source}_*.orig.tar.*"))
    return [path for path in found if path.suffix in (".gz", ".bz2", ".xz")]


def prepare(package: Package, root: Path) -> list[str]:
    """Headers that a build would have made; and the flags to find them with."""
    for target, pattern in package.links:
        for header in list(root.glob(pattern)):
            copied = root / target if target.endswith(".h") else root / target / header.name
            copied.parent.mkdir(parents=True, exist_ok=True)
            if not copied.exists():
                shutil.copy(header, copied)
    if package.source == "musl":
        _make_musl_types(root)
    for template in root.glob("*config.h.in"):
        written = template.with_suffix("")
        if not written.exists():
            with created(written, "w", "corpus") as file:
                file.write(_configured(template.read_text(errors="replace")))
    folders = ["-I", str(root), *(f for each in package.include for f in ("-I", str(root / each)))]
    configured = ["-DHAVE_CONFIG_H"] if (root / "config.h").exists() else []
    return [*ALWAYS, *configured, *_defines(package), *package.flags, *folders]


def _defines(package: Package) -> list[str]:
    return [f"-D{each}" for each in package.defines]


def _make_musl_types(root: Path) -> None:
    """What its tools/mkalltypes.sed makes: types that a header defines if it is asked for them."""
    written = root / "made" / "bits" / "alltypes.h"
    if written.exists():
        return
    text = "".join(
        (root / each / "alltypes.h.in").read_text() for each in (f"{_ARCH}/bits", "include")
    )
    once = (
        r"#if defined(__NEED_{0}) && !defined(__DEFINED_{0})\n{1}\n#define __DEFINED_{0}\n#endif\n"
    )
    text = re.sub(
        r"^TYPEDEF (.*) ([^ ]*);$", once.format(r"\2", r"typedef \1 \2;"), text, flags=re.M
    )
    for kind in ("struct", "union"):
        made = once.format(rf"{kind}_\1", rf"{kind} \1 \2;")
        text = re.sub(rf"^{kind.upper()} *([^ ]*) (.*);$", made, text, flags=re.M)
    written.parent.mkdir(parents=True, exist_ok=True)
    with created(written, "w", "corpus") as file:
        file.write(text)


def _configured(template: str) -> str:
    """A config.h: headers as they are found, nothing else (it is defined by flags)."""

    def defined(match: re.Match[str]) -> str:
        name = match.group(1)
        header = re.fullmatch(r"HAVE_(\w+)_H", name)
        if header is None:
            return ""
        path = header.group(1).lower().replace("sys_", "sys/")
        return f"#if !defined({name}) && __has_include(<{path}.h>)\n#define {name} 1\n#endif"

    return re.sub(r"^#\s*undef (\w+).*$", defined, template, flags=re.MULTILINE)


# --- compiling


@dataclass(frozen=True)
class _Task:
    path: Path
    flags: tuple[str, ...]
    kept: Path


def _module(task: _Task) -> Module | str:
    """What is in a file; or what was wrong with it."""
    try:
        if not task.kept.exists():
            text = code.compile_c(task.path, task.flags)
            task.kept.parent.mkdir(parents=True, exist_ok=True)
            with created(task.kept, "wb", "corpus") as file:
                file.write(gzip.compress(text.encode(), compresslevel=1, mtime=0))
        else:
            text = gzip.decompress(task.kept.read_bytes()).decode()
        if text.count("\n") > MOST_STATEMENTS:
            return f"more than {MOST_STATEMENTS} lines"
        functions = code.read_ir(text)
        edges = np.array(code.flow_edges(functions), np.int32).reshape(-1, 2)
        return Module([function.words for function in functions], edges)
    except CalderaError as error:
        said = re.search(r"error: (.*)", str(error))
        return (
            said.group(1).split("; headers are")[0].strip() if said else str(error).splitlines()[0]
        )


def _files(package: Package, root: Path) -> list[Path]:
    found = sorted({path for pattern in package.files for path in root.glob(pattern)})
    found = [each for each in found if not NOT_SOURCES.search(str(each.relative_to(root)))]
    step = max(1.0, len(found) / package.most)
    return [found[int(i * step)] for i in range(min(len(found), package.most))]


def _tasks(package: Package, root: Path, ir: Path) -> Iterator[tuple[bool, _Task]]:
    """Each file, and whether it is the one of -O1."""
    include = prepare(package, root)
    for number, path in enumerate(_files(package, root)):
        ways = [FLAGS]
        if package.part == "train":
            ways.append(OTHER_FLAGS[number % len(OTHER_FLAGS)])
        for way in ways:
            flags = (*include, *way)
            named = f"{path.relative_to(root)} {flags}"
            name = f"{path.stem}-{zlib.crc32(named.encode()):08x}.ll.gz"
            yield way is FLAGS, _Task(path, flags, ir / package.source / name)


def corpus(folder: Path, workers: int = 2, most: int | None = None) -> Iterator[Compiled]:
    """Every package, compiled; one that cannot be had is told by what is in `problem`."""
    fetch(folder)
    (folder / "sources").mkdir(exist_ok=True)
    sources = list(dict.fromkeys(package.source for package in PACKAGES))
    with ProcessPoolExecutor(workers) as pool:
        places = dict(zip(sources, pool.map(unpacked, sources, repeat(folder)), strict=True))
        given = []
        for package in PACKAGES:
            place = places[package.source]
            own = [] if isinstance(place, str) else list(_tasks(package, place[0], folder / "ir"))
            given.append(own[:most])
        # All in one row, so that nobody waits for the last file of a package.
        done = pool.map(_module, (task for own in given for _, task in own), chunksize=4)
        for package, own in zip(PACKAGES, given, strict=True):
            yield _compiled(package, places[package.source], own, done)


def _compiled(
    package: Package,
    place: tuple[Path, str] | str,
    tasks: list[tuple[bool, _Task]],
    done: Iterator[Module | str],
) -> Compiled:
    """A package, with the next of what was done."""
    found = Compiled(package)
    if isinstance(place, str):
        found.problem[place] += 1
        return found
    found.archive = place[1]
    for usual, _ in tasks:
        got = next(done)
        found.files += usual
        if isinstance(got, Module):
            (found.modules if usual else found.others).append(got)
        elif usual:
            found.failed += 1
            found.problem[got] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, help="compilations of a package")
    options = parser.parse_args()
    print(HEADINGS)
    for found in corpus(options.folder, most=options.most):
        print(found, flush=True)


if __name__ == "__main__":
    main()
