"""CTC by its decomposition, a loop over the frames, for nodes that no other kernel can run."""

from __future__ import annotations

from caldera.kernels.reference.registry import by_decomposition

by_decomposition("ctc_log_likelihood")
by_decomposition("ctc_posteriors")
