"""Graph-to-graph passes: one idea per file, in the order of `pipeline.py`.

A pass is left out by its name, as in `cd.compile(outputs, without=["fuse"])`:

- `losses`: the logarithm of a softmax and cross entropy in their stable form
- `fold`: constants are computed before a run
- `simplify`: algebra that is exact in floating point
- `epilogue`: bias and activation as part of the matrix product
- `merge`: duplicate constants and loops
- `hoist`: loop invariants, computed before the loop
- `dead`: unused outputs
- `update_product`: the step of plain gradient descent as part of the product of a gradient
- `fuse`: element-wise chains, with the reductions they feed, as one loop
- `layout`: images channels last in memory, for kernels that require it
- `in_place`: results written over values that are no longer needed (decided by the plan)

Mixed precision is opt-in: `cd.compile(outputs, precision="bfloat16")`.
"""
