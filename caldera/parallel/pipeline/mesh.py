"""The ranks of a pipeline as a mesh: pipelines, stages, and ranks that share the layers of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from caldera.comm import Communicator, Mesh, world
from caldera.errors import ConfigError
from caldera.parallel.consistency import check_same_options
from caldera.parallel.distributed_variables import AXIS as MODEL
from caldera.parallel.pipeline.stage_program import AXIS as PIPELINE

DATA = "data"
STAGE = "stage"
"""As the axis of a message: all ranks of a stage, of whichever pipeline."""
EVERYONE = "all"


class PipelineMesh(Mesh):
    """The mesh, with communicators for what the host says and for plans.

    Ranks along "model" are neighbours, for they talk most, unless another order is given.

    - `plan_communicator`: of all ranks, for plans; `mates`: all ranks of this one's stage.
    """

    def __init__(
        self,
        stages: int | Sequence[str] | None,
        data: int | None,
        model: int,
        mesh: Mesh | None,
        communicator: Communicator | None,
    ) -> None:
        axes, given = _axes(stages, data, model, mesh, communicator)
        check_same_options(given, self, axes=axes)
        # Nothing that others send through theirs is ever received here.
        super().__init__(given.Dup(), axes)
        self.communicator.axes = self.axes
        self.mates = self.together(DATA, MODEL)
        self.mates.axes = self.axes
        planned = Mesh(given.Dup(), axes)
        self.plan_communicator = planned.communicator
        self.plan_communicator.axes = {**planned.axes, STAGE: planned.together(DATA, MODEL)}


def _axes(
    stages: int | Sequence[str] | None,
    data: int | None,
    model: int,
    mesh: Mesh | None,
    communicator: Communicator | None,
) -> tuple[dict[str, int], Communicator]:
    """The lengths of the axes, and the ranks."""
    wanted = stages if stages is None or isinstance(stages, int) else len(stages) + 1
    if mesh is None:
        given = world() if communicator is None else communicator
        pipelines = data or (1 if wanted is None else max(1, given.size // (wanted * model)))
        axes = {DATA: pipelines, PIPELINE: given.size // (pipelines * model), MODEL: model}
    else:
        given = mesh.communicator
        others = [name for name in (DATA, PIPELINE, MODEL) if name not in mesh.shape]
        axes = {**mesh.shape, **dict.fromkeys(others, 1)}
    if (
        len(axes) > 3
        or math.prod(axes.values()) != given.size
        or (mesh is not None and (data is not None or model != 1 or communicator is not None))
        or (wanted is not None and wanted != axes[PIPELINE])
    ):
        shape = f"a mesh {mesh}" if mesh is not None else f"data={data}, model={model}"
        raise ConfigError.build(
            "PipelineParallel",
            expected=f"{given.size} ranks that are as many as stages times pipelines times model",
            got=f"stages={stages} and {shape}",
            hint='give stages=, data= and model=, or a mesh with the axes "data", "pipeline" and '
            '"model" alone',
        )
    return axes, given
