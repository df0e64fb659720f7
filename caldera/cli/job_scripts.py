"""Job scripts for schedulers: batch scripts for Slurm and MPIJobs for Kubernetes.

The scripts request what `Job` describes and start the program once per rank. A job that Slurm
warns before its time limit saves a checkpoint, exits with `REQUEUED` and is put back in the queue.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caldera.base.arguments import require
from caldera.base.children import run_program
from caldera.cli.command import flag, flags
from caldera.cli.option_types import CountOption, OptionType
from caldera.comm.mpi_library import find_launcher
from caldera.comm.supervision import REQUEUE, REQUEUED
from caldera.errors import ConfigError

_GRACE_S = 120
"""Seconds between the warning and the time limit: a checkpoint must be written in that time."""
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SUBMITTED_WITHIN_S = 60.0
_ENDED_WITHIN_S = 60
"""Seconds after which srun ends the ranks that outlive another."""
_HOSTFILE = "/etc/mpi/hostfile"
"""Host file of the MPI operator; Open MPI 5 does not read the operator's variable."""


@dataclass(frozen=True)
class TimeOption(OptionType):
    """A duration in seconds: 2h, 90m, 1d12h, or Slurm's 1-12:00:00 and 02:00:00.

    >>> [TimeOption().from_text(text, "--time") for text in ("2h", "1h30m", "1-12:00:00")]
    [7200, 5400, 129600]
    """

    placeholder = "TIME"
    expected = "a duration such as 2h, 90m, 1d12h or 02:00:00"

    def read(self, text: str) -> int:
        if found := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text):
            days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
            return 86400 * days + 3600 * hours + 60 * minutes + seconds
        if not re.fullmatch(r"(\d+[dhms])+", text):
            raise ValueError
        return sum(int(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"\d+[dhms]", text))

    def accept(self, value: Any) -> int:
        if value < 1:
            raise ValueError
        return int(value)


@dataclass(frozen=True)
class Job:
    """A program and the resources it requests of a scheduler.

    - `ranks`: their number on all nodes together; 0 for `array` tasks that are no ranks.
    - `seconds`: the time limit; None for the scheduler's default.
    - `array`: the number of independent tasks of a Slurm array.
    """

    command: Sequence[str]
    ranks: int
    nodes: int = 1
    gpus_per_node: int = 0
    cores_per_rank: int = 0
    seconds: int | None = None
    memory: str | None = None
    name: str = "caldera"
    array: int = 0

    def __post_init__(self) -> None:
        require(
            self.ranks % self.nodes == 0,
            "run",
            f"a number of ranks that {self.nodes} nodes share equally",
            f"{self.ranks} ranks",
            f"--ranks {self.nodes * max(1, round(self.ranks / self.nodes))} divides",
        )

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each node."""
        return self.ranks // self.nodes


def job_name(program: Sequence[str]) -> str:
    """Return a name that Slurm and Kubernetes both accept.

    >>> job_name(["my/Train_Net.py"])
    'train-net'
    """
    return re.sub(r"[^a-z0-9]+", "-", Path(program[0]).stem.lower()).strip("-")[:40] or "caldera"


# --- Slurm

SLURM_FLAGS = flags(
    flag("--submit", action="store_true", help="pass the batch script to sbatch"),
    flag("--gpus-per-node", metavar="N", default="0", help="GPUs of each machine (default: 0)"),
    flag("--cores-per-rank", metavar="N", default="0", help="cores, and threads, of each process"),
    flag("--memory", metavar="SIZE", help="memory of each machine, as the scheduler writes it"),
    flag("--time", metavar="TIME", help="time limit, such as 2h; a run is warned before it"),
    flag("--partition", metavar="NAME", help="Slurm partition"),
    flag("--account", metavar="NAME", help="Slurm account"),
)
_WITHOUT_VALUE = ("--submit",)


def requested(arguments: argparse.Namespace, command: Sequence[str], **settings: Any) -> Job:
    """Return the job that the flags describe; `settings` are its further fields."""
    counts = {
        name: CountOption(0).from_text(getattr(arguments, name), "--" + name.replace("_", "-"))
        for name in ("gpus_per_node", "cores_per_rank")
    }
    seconds = TimeOption().optional(arguments.time, "--time")
    return Job(command, seconds=seconds, memory=arguments.memory, **counts, **settings)


def hand_out(job: Job, arguments: argparse.Namespace) -> int:
    """Print the batch script of a job, or submit it; return the exit status."""
    script = slurm_script(job, partition=arguments.partition, account=arguments.account)
    print(submit(script) if arguments.submit else script.rstrip("\n"))
    return 0


def without_flags(words: Sequence[str], *names: str) -> list[str]:
    """Return a command line without these flags, which have values, and without Slurm's.

    >>> without_flags(["search", "--slurm", "4", "--time=2h", "--trials", "9"], "--slurm")
    ['search', '--trials', '9']
    """
    parser = argparse.ArgumentParser()
    SLURM_FLAGS(parser)
    valued = {*names, *parser._option_string_actions} - {*_WITHOUT_VALUE, "-h", "--help"}
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in valued:
            next(rest, None)
        elif word not in _WITHOUT_VALUE and word.partition("=")[0] not in valued:
            kept.append(word)
    return kept


def slurm_script(job: Job, *, partition: str | None = None, account: str | None = None) -> str:
    """Return the batch script of a job.

    >>> print(slurm_script(Job(["./solve"], 8, nodes=2, seconds=7200, name="solve")))
    #!/bin/bash
    #SBATCH --job-name=solve
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=4
    #SBATCH --time=0-02:00:00
    #SBATCH --signal=USR1@120
    #SBATCH --requeue
    #SBATCH --open-mode=append
    #SBATCH --output=solve-%j.out
    <BLANKLINE>
    # A rank that saved its checkpoint on a warning exits with 85; the job then starts again.
    export CALDERA_REQUEUE=1
    status=0
    srun --mpi=pmix --wait=60 ./solve || status=$?
    if [ "$status" -eq 85 ]; then
        exec scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$status"
    <BLANKLINE>
    """
    head = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node or 1,
        "cpus-per-task": job.cores_per_rank or None,
        "gpus-per-node": job.gpus_per_node or None,
        "mem": job.memory,
        "time": None if job.seconds is None else _slurm_time(job.seconds),
        "partition": partition,
        "account": account,
        "array": f"0-{job.array - 1}" if job.array else None,
        # Tasks of an array save no checkpoint: the signal would only end them earlier.
        "signal": f"USR1@{_warned_before(job.seconds)}" if job.ranks and job.seconds else None,
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{k}={v}" for k, v in head.items() if v is not None)]
    lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append"]
    lines += [f"#SBATCH --output={job.name}-{'%A-%a' if job.array else '%j'}.out", ""]
    # A single rank needs no MPI, and some Slurms lack the library of their PMIx plugin.
    start = f"--mpi={_process_manager() if job.ranks > 1 else 'none'} --wait={_ENDED_WITHIN_S}"
    if job.cores_per_rank:
        lines += [f"export CALDERA_THREADS={job.cores_per_rank}"]
        # srun does not take this from the lines above.
        start += f" --cpus-per-task={job.cores_per_rank}"
    status = f'if [ "$status" -eq {REQUEUED} ]; then'
    return "\n".join(
        [
            *lines,
            f"# A rank that saved its checkpoint on a warning exits with {REQUEUED}; "
            "the job then starts again.",
            f"export {REQUEUE}=1",
            "status=0",
            f"srun {start} {shlex.join(job.command)} || status=$?",
            status,
            '    exec scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$status"',
            "",
        ]
    )


def submit(script: str) -> str:
    """Pass a batch script to sbatch, and return its answer."""
    require(
        shutil.which("sbatch"),
        "run --submit",
        "sbatch on this machine",
        "none",
        "print the script without --submit, and submit it on a login node",
    )
    done = run_program("sbatch", seconds=_SUBMITTED_WITHIN_S, content=script.encode())
    if done is None or done.returncode:
        got = "no answer" if done is None else done.stderr.decode(errors="replace").strip()
        raise ConfigError.build("run --submit", expected="a job that Slurm accepts", got=got)
    return done.stdout.decode(errors="replace").strip()


def _slurm_time(seconds: int) -> str:
    minutes = -(-seconds // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def _warned_before(seconds: int) -> int:
    """Return the seconds before the limit at which Slurm warns: at most a quarter of a job."""
    return max(1, min(_GRACE_S, seconds // 4))


def _process_manager() -> str:
    """Return the srun plugin that starts ranks of the MPI that mpi4py loads."""
    found = find_launcher()
    return "pmi2" if found is not None and found.implementation.startup == "PMI" else "pmix"


# --- Kubernetes


def mpi_job(job: Job, image: str, *, namespace: str | None = None, restarts: int = 0) -> str:
    """Return an MPIJob of the Kubeflow MPI operator (v2beta1) as YAML."""
    per_node = max(1, job.ranks_per_node)
    limits: dict[str, Any] = {}
    if job.cores_per_rank:
        limits["cpu"] = job.cores_per_rank * per_node
    if job.memory:
        limits["memory"] = job.memory
    if job.gpus_per_node:
        limits["nvidia.com/gpu"] = job.gpus_per_node
    mpirun = ["mpirun", "--allow-run-as-root", "--hostfile", _HOSTFILE, "-n", str(job.ranks)]
    mpirun += ["--bind-to", "none", "-x", "CALDERA_THREADS", *job.command]
    threads = {"name": "CALDERA_THREADS", "value": str(job.cores_per_rank or 1)}
    launcher = {"name": "launcher", "image": image, "command": mpirun, "env": [threads]}
    worker: dict[str, Any] = {"name": "worker", "image": image}
    if limits:
        worker["resources"] = {"limits": limits}
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": restarts}
    if job.seconds is not None:
        policy["activeDeadlineSeconds"] = job.seconds
    metadata = {"name": job.name} | ({"namespace": namespace} if namespace else {})
    return yaml_text(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata,
            "spec": {
                "slotsPerWorker": per_node,
                "runPolicy": policy,
                "mpiReplicaSpecs": {
                    "Launcher": {
                        "replicas": 1,
                        "restartPolicy": "OnFailure",
                        "template": {"spec": {"containers": [launcher]}},
                    },
                    "Worker": {
                        "replicas": job.nodes,
                        "template": {"spec": {"containers": [worker]}},
                    },
                },
            },
        }
    )


def yaml_text(value: Any, indent: str = "") -> str:
    """Return plain data as YAML; texts are quoted as JSON, which YAML reads.

    >>> print(yaml_text({"spec": {"n": 2, "command": ["a", "b c"]}}), end="")
    spec:
      n: 2
      command:
      - "a"
      - "b c"
    """
    if isinstance(value, Mapping):
        return "".join(f"{indent}{key}:{_nested(each, indent)}" for key, each in value.items())
    lines = []
    for each in value:
        text = yaml_text(each, indent + "  ") if isinstance(each, Mapping) else ""
        lines.append(f"{indent}- {text.lstrip() if text else json.dumps(each)}".rstrip("\n") + "\n")
    return "".join(lines)


def _nested(value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        return "\n" + yaml_text(value, indent + "  ")
    if isinstance(value, list):
        return "\n" + yaml_text(value, indent)
    return f" {json.dumps(value)}\n"
