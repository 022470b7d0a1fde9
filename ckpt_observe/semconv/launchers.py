"""Launchers of distributed programs, and the environment variables in which they tell a process its rank."""

from __future__ import annotations

from typing import Final, NamedTuple

from ckpt_observe.semconv import attributes as names

RANK_ATTRIBUTES: Final = (names.RANK, names.WORLD_SIZE, names.LOCAL_RANK, names.NODE_RANK)


class Launcher(NamedTuple):
    """The variables of a launcher. `rank` and `world_size` must both be set; the others may be empty if the launcher has none."""

    title: str
    rank: str
    world_size: str
    local_rank: str = ""
    node_rank: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in the order of RANK_ATTRIBUTES."""
        return self.rank, self.world_size, self.local_rank, self.node_rank


# fmt: off
LAUNCHERS: Final = (
    Launcher("torchrun, `accelerate launch`, DeepSpeed", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    Launcher("JAX (jobs that pass the arguments of `jax.distributed.initialize`)", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    # OMPI_COMM_WORLD_NODE_RANK is not the number of the machine, but that of the process on it.
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    Launcher("Intel MPI, MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    Launcher("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    # SLURM_NTASKS is also set in the batch script, which is one process and not the first of many.
    Launcher("Slurm (`srun`)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"),
)
# fmt: on
"""The first launcher whose variables are set counts: Slurm may start mpirun or torchrun, which know better."""
