"""Optional dependencies of Caldera, detected without slow imports."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from caldera.base.machine import answer
from caldera.comm.mpi_library import LIBRARY_VARIABLE, find_launcher, library


@dataclass(frozen=True)
class OptionalFeature:
    """Something Caldera can use, whether it is here, and if not, how to get it."""

    name: str
    found: str
    """Version or description; empty if it is not installed."""
    purpose: str
    install: str


@dataclass(frozen=True)
class Package:
    """Python package: its module name and its possible distribution names."""

    module: str
    distributions: tuple[str, ...]
    purpose: str
    install: str


CUDA = "pip install 'caldera[cuda]'"
BENCH = "pip install 'caldera[bench]'"
SERVE = "pip install 'caldera[serve]'"
TABLES = "pip install 'caldera[tables]'"
MPI = "pip install 'caldera[mpi]'"

PACKAGES = (
    Package("ml_dtypes", ("ml_dtypes",), "bfloat16", "pip install ml_dtypes"),
    Package("tokenizers", ("tokenizers",), "texts as byte pairs", "pip install 'caldera[text]'"),
    Package(
        "sklearn",
        ("scikit-learn",),
        "caldera.sklearn, importances of a search",
        "pip install 'caldera[sklearn]'",
    ),
    Package("scipy", ("scipy",), "linear algebra of caldera.dmath", "pip install 'caldera[dmath]'"),
    Package("PIL", ("pillow",), "folders of images", "pip install pillow"),
    Package(
        "soundfile", ("soundfile",), "flac files in caldera.audio", "pip install 'caldera[audio]'"
    ),
    Package("pandas", ("pandas",), "frames that are given and taken", TABLES),
    Package("pyarrow", ("pyarrow",), "tables in Parquet and Feather files", TABLES),
    Package("openpyxl", ("openpyxl",), "tables in Excel workbooks", TABLES),
    Package("shtab", ("shtab",), "caldera completion", "pip install 'caldera[completion]'"),
    Package("rich", ("rich",), "the live line of progress", "pip install rich"),
    Package("threadpoolctl", ("threadpoolctl",), "the BLAS's threads", "pip install threadpoolctl"),
    Package("onnx", ("onnx",), "models of other frameworks", "pip install 'caldera[onnx]'"),
    Package("mpi4py", ("mpi4py",), "training on several processes", MPI),
    Package(
        "optuna", ("optuna",), "caldera search, caldera.search", "pip install 'caldera[search]'"
    ),
    Package("cmaes", ("cmaes",), "search.CMAES", "pip install 'caldera[search]'"),
    Package("uvicorn", ("uvicorn",), "caldera serve, caldera.serve", SERVE),
    Package("httptools", ("httptools",), "caldera serve, caldera.serve", SERVE),
    Package("uvloop", ("uvloop",), "caldera serve, a little faster", SERVE),
    Package(
        "tensorboard",
        ("tensorboard",),
        "showing what cd.TensorBoard writes",
        "pip install tensorboard",
    ),
    Package("torch", ("torch",), "caldera bench against PyTorch", BENCH),
    Package("jax", ("jax",), "caldera bench against JAX", BENCH),
    Package("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "NVIDIA GPUs", CUDA),
    Package("nvmath", ("nvmath-python",), "cuBLAS for GPUs", CUDA),
    Package(
        "nvidia.cudnn", ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), "convolutions on GPUs", CUDA
    ),
    Package("cudnn", ("nvidia-cudnn-frontend",), "convolutions on GPUs", CUDA),
)


def parts() -> list[OptionalFeature]:
    """Return all optional parts, installed or not."""
    return [_gpu(), *_mpi(), *(_package(package) for package in PACKAGES)]


def _package(package: Package) -> OptionalFeature:
    name = package.distributions[0]
    if not _importable(package.module):
        return OptionalFeature(name, "", package.purpose, package.install)
    for distribution in package.distributions:
        try:
            return OptionalFeature(
                distribution, version(distribution), package.purpose, package.install
            )
        except PackageNotFoundError:
            continue
    return OptionalFeature(name, "unknown version", package.purpose, package.install)


def _importable(module: str) -> bool:
    """Return True if a module exists; only its parent packages are imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _gpu() -> OptionalFeature:
    purpose = "training on a GPU"
    lines = answer(
        "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
    )
    cards = [line.strip() for line in lines if line.strip()]
    if cards:
        return OptionalFeature("GPU", "; ".join(cards), purpose, "")
    return OptionalFeature(
        "GPU", "", purpose, "an NVIDIA GPU, and its driver from nvidia.com/drivers"
    )


def _mpi() -> list[OptionalFeature]:
    """Return the MPI library that mpi4py loads, and the launcher of its ranks."""
    loaded = library() if _importable("mpi4py") else None
    starter = find_launcher()
    found = "" if starter is None else f"{starter.implementation} at {starter.path}"
    if loaded and starter and not starter.implementation.starts(loaded):
        found += f", which does not start {loaded}: {LIBRARY_VARIABLE} names another library"
    return [
        OptionalFeature("MPI", str(loaded or ""), "loaded by mpi4py", MPI),
        OptionalFeature("mpiexec", found, "starting several processes", MPI),
    ]
