"""TensorBoard's event files, written without TensorBoard or TensorFlow.

`wire` writes Protocol Buffers, `messages` knows what TensorBoard reads, and `file` appends them, as
records with their checksums, to a file that TensorBoard finds.
"""

from __future__ import annotations

from caldera.io.events.event_file import EventFile, GraphNode

__all__ = ["EventFile", "GraphNode"]
