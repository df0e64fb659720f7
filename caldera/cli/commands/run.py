"""`caldera run`: a program as several processes, started again after a failure if wanted."""

from __future__ import annotations

import argparse

from caldera.base.arguments import require
from caldera.cli.command import Command, flag, flags, group
from caldera.cli.job_scripts import SLURM_FLAGS, hand_out, job_name, mpi_job, requested
from caldera.cli.option_types import CountOption, Number
from caldera.comm.supervision import Supervisor, launch, python_command

add_flags = flags(
    flag(
        "-n",
        "--ranks",
        metavar="N",
        help="number of processes; 2:8 starts with any number from 2 to 8",
    ),
    flag(
        "--restarts",
        metavar="N",
        default="0",
        help="restart all processes, up to N times, when one fails or is killed (default: 0); "
        "fit(..., checkpoint=, resume=True) resumes from the last checkpoint",
    ),
    flag(
        "--grace",
        metavar="SECONDS",
        default="30",
        help="time to save a checkpoint after SIGTERM or SIGUSR1 (default: 30)",
    ),
    flag("--hosts", metavar="A:N,B:N", help="machines and the processes each takes"),
    flag(
        "--survive",
        action="store_true",
        help="let the remaining processes continue when one dies (Open MPI 5)",
    ),
    group(
        "job scripts",
        flag("--slurm", action="store_true", help="print a batch script for Slurm"),
        flag("--k8s", action="store_true", help="print an MPIJob for Kubernetes"),
        flag("--image", metavar="NAME", help="container image of an MPIJob"),
        flag("--namespace", metavar="NAME", help="Kubernetes namespace of an MPIJob"),
        flag("--nodes", metavar="N", default="1", help="number of machines (default: 1)"),
        SLURM_FLAGS,
    ),
    flag("program", metavar="PROGRAM", help="a Python file, or another program"),
    flag("arguments", nargs=argparse.REMAINDER, help="arguments of the program"),
)
"""The flags of `run`."""


def run(arguments: argparse.Namespace) -> int:
    """Start the program; its exit status."""
    restarts = CountOption(0).from_text(arguments.restarts, "--restarts")
    if arguments.slurm or arguments.k8s or arguments.submit:
        return _scheduled(arguments, restarts)
    ranks = _counts(_ranks(arguments))
    program = [arguments.program, *arguments.arguments]
    return Supervisor(
        lambda number, hosts: launch(number, program, hosts=hosts, survive=arguments.survive),
        *ranks,
        restarts=restarts,
        hosts=arguments.hosts,
        grace_s=Number().from_text(arguments.grace, "--grace"),
    ).run()


def _ranks(arguments: argparse.Namespace) -> str:
    require(arguments.ranks, "-n/--ranks", "the number of processes")
    return str(arguments.ranks)


def _scheduled(arguments: argparse.Namespace, restarts: int) -> int:
    """Print or submit the script of a scheduler."""
    require(not (arguments.slurm and arguments.k8s), "run", "--slurm or --k8s", "both")
    slurm = ("submit", "partition", "account")
    for name in slurm if arguments.k8s else ("image", "namespace"):
        kind = "--k8s" if arguments.k8s else "--slurm"
        require(not getattr(arguments, name), "run", f"flags of {kind}", f"--{name}")
    nodes = CountOption(1).from_text(arguments.nodes, "--nodes")
    # One rank drives one GPU.
    gpus = nodes * CountOption(0).from_text(arguments.gpus_per_node, "--gpus-per-node")
    given = str(gpus) if gpus and not arguments.ranks else _ranks(arguments)
    program = [arguments.program, *arguments.arguments]
    job = requested(
        arguments,
        python_command(program, "python") if arguments.k8s else python_command(program),
        ranks=CountOption(1).from_text(given, "--ranks"),
        nodes=nodes,
        name=job_name(program),
    )
    if not arguments.k8s:
        return hand_out(job, arguments)
    require(arguments.image, "run --k8s", "--image NAME, with Python, Caldera and MPI")
    print(mpi_job(job, arguments.image, namespace=arguments.namespace, restarts=restarts), end="")
    return 0


def _counts(text: str) -> tuple[int, int]:
    """Return the fewest and the most ranks of "4" or "2:8"."""
    least, _, most = text.partition(":")
    numbers = [CountOption(1).from_text(part, "--ranks") for part in (least, most or least)]
    require(numbers[0] <= numbers[1], "--ranks", "the smaller number first, as in 2:8", text)
    return numbers[0], numbers[1]


COMMAND = Command(
    name="run",
    takes="-n N PROGRAM [ARGUMENTS]",
    summary="Run a program as several processes that train together.",
    examples="""
        caldera run -n 4 train.py
        caldera run -n 4 --restarts 3 train.py --epochs 10
        caldera run -n 8 --hosts a:4,b:4 train.py
        caldera run -n 2:8 --restarts 3 --hosts a:4,b:4 train.py
        caldera run --slurm --nodes 4 --gpus-per-node 4 --time 2h train.py
        caldera run --k8s --image registry/train:1 -n 8 --nodes 2 train.py
    """,
    add_flags=add_flags,
    run=run,
    order=52,
)
