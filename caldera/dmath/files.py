"""Saving and loading arrays whose parts are on ranks."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caldera.base.arguments import require
from caldera.comm.places.shared_folder import FolderProof
from caldera.compiler.sharding.distributions import Distribution, Replicated, Rows, as_layout
from caldera.compiler.sharding.layout import ShardLayout
from caldera.core.graph.node import Spec
from caldera.core.tensor.dtype import canonical
from caldera.dmath.array import Array, leaf_of
from caldera.dmath.connect import current
from caldera.dmath.session import Handle, Session, senders
from caldera.dmath.shards import INDEX, Saved, open_source, read_index, write_index
from caldera.io import save_npy

ONLY = ""
"""The name of an array that was saved without one."""
PathLike = str | os.PathLike[str]
Where = ShardLayout | Distribution | Mapping[str, ShardLayout | Distribution] | None


def save(path: PathLike, arrays: Array | Mapping[str, Array]) -> None:
    """Save an array, or arrays by name, into a folder of safetensors files with an index.

    Each rank writes its parts. Any number of ranks can load the folder. Earlier content of the
    folder stays valid until the new arrays are complete. A path that ends in .npy stores a single
    array, which has to fit into this process.

    >>> import tempfile
    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> folder = tempfile.mkdtemp()
    >>> with dm.connect(threads=3):
    ...     dm.save(folder, {"a": dm.arange(6), "b": dm.ones((2, 2))})
    >>> with dm.connect(threads=2):
    ...     dm.load(folder)["a"].numpy()
    array([0, 1, 2, 3, 4, 5])
    """
    named = arrays if isinstance(arrays, Mapping) else {ONLY: arrays}
    require(
        Path(path).suffix != ".npy" or len(named) == 1,
        "dm.save",
        "one array for an npy file",
        f"{len(named)} arrays",
        hint="save several arrays in a folder",
    )
    for name, each in named.items():
        require(
            isinstance(name, str) and isinstance(each, Array),
            "dm.save",
            "an array of dmath, or a dict of arrays by name",
            f"{type(each).__name__} under the name {name!r}",
            hint="dm.array makes one",
        )
    save_handles(current(), path, {name: each.handle for name, each in named.items()})


def load(path: PathLike, *, layout: Where = None, dataset: str = "") -> Any:
    """Load an array, or a dict of arrays, that `save` wrote; each rank reads the data it needs.

    - `path` may also be a .npy, HDF5 (.h5, .hdf5) or Zarr file larger than the memory of any rank:
      `dataset` selects one of several arrays.
    - `layout`: for all arrays, or by name. The default is the saved layout if the number of ranks
      is the same, otherwise blocks of rows.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.npy"
    >>> np.save(path, np.arange(12.0).reshape(3, 4))
    >>> with dm.connect(threads=2):
    ...     dm.load(path, layout=dm.Columns()).sum().item()
    66.0
    """
    handles = load_handles(current(), path, layout, dataset)
    arrays = {name: Array(leaf_of(handle)) for name, handle in handles.items()}
    return (
        arrays[next(iter(arrays))] if set(arrays) == {dataset} or set(arrays) == {ONLY} else arrays
    )


def save_handles(session: Session, path: PathLike, arrays: Mapping[str, Handle]) -> None:
    """Write arrays into a folder, each rank its parts; or one array into an npy file, whole."""
    place = Path(path).absolute()
    if place.suffix == ".npy":
        (only,) = arrays.values()
        whole = session.get(only)
        if session.is_first:
            save_npy(place, whole)
        session.call("nbytes")
        return
    require(
        not place.suffix or place.is_dir(), "dm.save", "a folder, or a file that ends in .npy", path
    )
    if session.is_first:
        place.mkdir(parents=True, exist_ok=True)
    if session.one_script:
        _check_seen(session, place)
    mark = session.agree(secrets.token_hex(4))
    held = {name: senders(handle.layout) for name, handle in arrays.items()}
    named = session.call_each(
        "save_parts",
        [
            (str(place), mark, tuple((n, arrays[n].number) for n in arrays if rank in held[n]))
            for rank in range(session.ranks)
        ],
    )
    if session.is_first:
        index = {
            name: Saved(
                handle.spec.dtype.name, handle.layout, {rank: named[rank] for rank in held[name]}
            )
            for name, handle in arrays.items()
        }
        write_index(place, index)
    # Waits until all ranks have loaded their parts.
    session.call("nbytes")


def _check_seen(session: Session, folder: Path) -> None:
    """Raise an error if a worker, on another machine, has another folder of this name or none."""
    with FolderProof(folder) as proof:
        reasons = session.call("unseen_folder", proof.offered["path"], proof.offered["nonce"])
    for worker, reason in enumerate(reasons):
        require(
            not reason,
            "dm.save",
            f"a folder that all workers see: {folder}",
            f"{reason}, for worker {worker}",
            hint="name a folder on a file system that all machines share, or an npy file",
        )


def load_handles(
    session: Session,
    path: PathLike,
    layout: Where = None,
    dataset: str = "",
) -> dict[str, Handle]:
    """Return the arrays of a folder by name, or the array of a file under its `dataset` name.

    Each rank reads the data it needs. `layout` is for all arrays, or by name.
    """
    place = Path(path).absolute()

    def loaded(
        name: str, spec: Spec, before: ShardLayout | None, service: str, *what: Any
    ) -> Handle:
        wanted = layout.get(name) if isinstance(layout, Mapping) else layout
        found = _chosen(session, wanted, spec, before)
        handle = session.new_handle(spec, found)
        session.call(service, str(place), name, handle.number, found, *what)
        return handle

    if not place.is_dir() or not (place / INDEX).exists():
        source = open_source(str(place), dataset)
        spec = Spec(source.shape, source.dtype)
        return {dataset: loaded(dataset, spec, None, "load_source")}
    handles = {}
    for name, saved in read_index(place).items():
        spec = Spec(tuple(saved.layout.shape), canonical(saved.dtype))
        written = (saved.dtype, saved.layout, tuple(saved.files.items()))
        handles[name] = loaded(name, spec, saved.layout, "load_parts", written)
    return handles


def _chosen(
    session: Session,
    wanted: ShardLayout | Distribution | None,
    spec: Spec,
    before: ShardLayout | None,
) -> ShardLayout:
    ranks = range(session.ranks)
    if wanted is not None:
        return as_layout(wanted, spec.shape, ranks)
    if before is not None and max(before.ranks) < session.ranks:
        return before
    return (Rows() if spec.shape else Replicated()).of(spec.shape, ranks)
