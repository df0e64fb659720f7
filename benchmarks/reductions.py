"""Sums of rows, of columns and of all elements, by every kernel there is, and which one is chosen.

    python benchmarks/reductions.py --sizes 64,128,256,512,1024,2048,3500 --dtypes float32,float64

As the seed's figure 3: square arrays over sizes. All ways take turns, and the best turn counts.
"""

from __future__ import annotations

import argparse
import tempfile

from caldera.bench.reduction_candidates import chosen_reduction, reduction_runners
from caldera.bench.turns import best_in_turns
from caldera.config import settings
from caldera.kernels.common.blas_threads import single_threaded_blas

WAYS = {"rows": (1,), "columns": (0,), "both": (0, 1)}
COLUMNS = ("native", "two stages", "numpy", "product with ones", "np.sum")
ROUNDS, ROUND_S = 15, 1e-3


def main() -> None:
    """Read the command line, and print a table for each dtype and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="64,128,256,512,1024,2048,3500")
    parser.add_argument("--dtypes", default="float32,float64,float16,int32,int64")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.override(cache_dir=folder, tune_budget_s=1e6),
    ):
        for dtype in options.dtypes.split(","):
            print(f"\n{dtype}, us a call\n")
            print(f"| sum of | size | {' | '.join(COLUMNS)} | chosen | chosen to the fastest |")
            print("|---" * (len(COLUMNS) + 4) + "|")
            for way, axes in WAYS.items():
                for size in map(int, options.sizes.split(",")):
                    # As in a plan: its threads are Caldera's.
                    with single_threaded_blas:
                        runners = reduction_runners((size, size), axes, dtype)
                        times = best_in_turns(runners, ROUNDS, ROUND_S)
                    chosen = chosen_reduction((size, size), axes, dtype)
                    ours = times.get(chosen.partition(" on ")[0], times["native"])
                    fastest = min(time for name, time in times.items() if name != "np.sum")
                    cells = [f"{1e6 * times[c]:.1f}" if c in times else "-" for c in COLUMNS]
                    print(f"| {way} | {size} | {' | '.join(cells)} | {chosen} "
                          f"| {ours / fastest:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
