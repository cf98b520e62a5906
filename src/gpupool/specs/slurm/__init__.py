"""Job scripts of Slurm: ``#SBATCH`` lines as options of ``submit``."""
