//! The launcher that has started this process with others: mpirun, mpiexec or srun.

/// The variable that names the MPI library to open.
pub(crate) const MPI_LIBRARY: &str = "WGPT_MPI_LIBRARY";

/// A process among those that a launcher has started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub rank: usize,
    /// The number of processes, more than 1.
    pub size: usize,
    /// The number of the process on its machine, from 0.
    pub local_rank: usize,
    /// True for a launcher of MPICH's family.
    pub is_mpich: bool,
}

/// The variables of MPICH's mpiexec, Open MPI's mpirun and srun with the rank, the number of ranks and the
/// rank on its machine. A job script of Slurm, which is not one of several processes, has SLURM_NTASKS
/// too, but not the number of a step's tasks.
const OF_MPICH: [&str; 3] = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"];
const LAUNCHERS: [[&str; 3]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    OF_MPICH,
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"],
];

impl Launch {
    /// Returns this process's place among those that were started with it; `None` if it was started
    /// alone.
    pub fn of_this_process() -> Option<Self> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Returns the place of this process, for messages.
    pub fn label(&self) -> String {
        let machine = super::machine().map_or_else(String::new, |name| format!(" ({name})"));
        format!("rank {} of {}{machine}", self.rank, self.size)
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        LAUNCHERS.into_iter().find_map(|known| {
            let [rank, size, local_rank] = known.map(number);
            let rank = rank?;
            let size = size?;
            let local_rank = local_rank.or_else(|| number("SLURM_LOCALID")).unwrap_or(0);
            let is_mpich = known == OF_MPICH;
            (size > 1 && rank < size).then_some(Self { rank, size, local_rank, is_mpich })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Launch> {
        Launch::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ];
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let srun = [("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_LOCALID", "3")];
        for (variables, rank, size, local_rank, is_mpich) in
            [(&open_mpi[..], 2, 4, 1, false), (&hydra, 1, 2, 0, true), (&srun, 3, 8, 3, false)]
        {
            assert_eq!(read(variables), Some(Launch { rank, size, local_rank, is_mpich }));
        }
    }

    #[test]
    fn a_process_by_itself_has_no_ranks() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), None);
        // The script of a job.
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), None);
        assert_eq!(read(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]), None);
    }
}
