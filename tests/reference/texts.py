"""Writes short texts in the compressed formats that `wgpt prepare` reads and Python's library cannot write.

    pip install pyarrow      # made with 26.0.1
    python tests/reference/texts.py [FOLDER]

The columns of texts.parquet have the same texts, each in another encoding and compression. scripts/campaign.py damages
the files.
"""

import pathlib
import sys

import pyarrow
import pyarrow.parquet

COLUMNS = {
    "plain": ("NONE", "PLAIN"),
    "snappy": ("SNAPPY", "PLAIN"),
    "gzip": ("GZIP", "DELTA_BYTE_ARRAY"),
    "lz4": ("LZ4", "DELTA_LENGTH_BYTE_ARRAY"),
    # None is a dictionary.
    "zstd": ("ZSTD", None),
}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    texts = [None if n % 7 == 3 else f"Story {n % 5}: the fox looked at the moon, and the moon looked back.\n" for n in range(40)]
    table = pyarrow.table({name: texts for name in COLUMNS})
    pyarrow.parquet.write_table(
        table, folder / "texts.parquet", row_group_size=25, data_page_version="2.0", store_schema=False,
        compression={name: compression for name, (compression, _) in COLUMNS.items()},
        use_dictionary=[name for name, (_, encoding) in COLUMNS.items() if encoding is None],
        column_encoding={name: encoding for name, (_, encoding) in COLUMNS.items() if encoding is not None})
    text = "".join(text or "" for text in texts).encode()
    (folder / "texts.txt.zst").write_bytes(pyarrow.compress(text, codec="zstd", asbytes=True))


if __name__ == "__main__":
    main()
