"""Makes checksums.parquet: what the Rust writer of the tests cannot write, pages with a CRC. Made with pyarrow 26.

    python make.py
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

table = pa.table({
    "eps_id": ["a", "a", "a"],
    "obs": pa.array([0.0, 1.0, 2.0], pa.float32()),
    "actions": pa.array([0, 1, 2], pa.int32()),
    "rewards": pa.array([1.0, 2.0, 3.0], pa.float64()),
    "terminateds": [False, False, True],
})
out = Path(__file__).parent / "checksums.parquet"
pq.write_table(table, out, write_page_checksum=True, use_dictionary=False, compression="none")
