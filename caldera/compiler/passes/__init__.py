"""Graph to graph: each file one idea, `pipeline.py` their order.

A pass is left out by its name, as in `cd.compile(outputs, without=["fuse"])`:

- `losses`: the logarithm of a softmax and cross entropy in their stable form
- `fold`: what is known before a run is computed before it
- `simplify`: algebra that is exact in floating point
- `epilogue`: bias and activation as part of the matrix product
- `merge`: constants and loops that are there twice
- `hoist`: what is the same in every step of a loop, before the loop
- `dead`: outputs that nobody reads
- `update_product`: the step of plain gradient descent as part of the product of a gradient
- `fuse`: element-wise chains, with the reductions they feed, as one loop
- `layout`: images channels last in memory, where the kernels want them so
- `in_place`: results written over values that are no longer needed (decided by the plan)

Mixed precision is asked for, not left out: `cd.compile(outputs, precision="bfloat16")`.
"""
