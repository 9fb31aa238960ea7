"""Writes tables as CSV, each with the texts that Python's csv and pandas read from its column `text`.

    pip install pandas       # made with 3.1.1
    python tests/reference/tables.py [FOLDER]
"""

import csv
import io
import json
import pathlib
import sys

import pandas

# Separator, encoding and content.
TABLES = [
    (",", "utf-8", "id,text,label\n1,One day.,a\n2,Two days.,b\n"),
    (",", "utf-8", "text,id\nNo line break at the end,1"),
    (",", "utf-8", "text\nOne column alone\nand another\n"),
    (",", "utf-8", ',text\n0,"With an index, as pandas writes it"\n1,plain\n'),
    (",", "utf-8", 'id,text\n1,"two\nlines, and a comma"\n2,"two\r\nlines"\n'),
    (",", "utf-8", 'id,text\n1,"""Hello!"", she said."\n2,""""\n3,"a""b"\n'),
    (",", "utf-8", 'id,text\n1,a "quoted" word\n2,"closed" early\n3,6" long\n'),
    (",", "utf-8", 'id,text\r\n1,"a\r\nb"\r\n2,c\r\n'),
    (",", "utf-8", "id,text\r1,old Macs\r2,wrote this\r"),
    (",", "utf-8", "id,text\n\n1,after blank lines\n\n\n2,and before\n\n"),
    (",", "utf-8", 'id,text\n1,\n2,""\n3,NA\n4,null\n5, spaces around \n'),
    (",", "utf-8", '"id","text"\n"1","all in quotes"\n"2","of R"\n'),
    (",", "utf-8-sig", "text,id\nafter a byte order mark,1\n"),
    (",", "utf-8-sig", '"text","id"\n"after a mark, in quotes",1\n'),
    (";", "utf-8", 'id;text\n1;Komma, und "Punkt"\n2;"Strich; und Zeile\n"\n'),
    (";", "utf-8-sig", "id;text\r\n1;Größe, Maß\r\n2;für 1,50 €\r\n"),
    (";", "windows-1252", "id;text\r\n1;Größe, Maß\r\n2;für 1,50 €\r\n"),
    ("\t", "utf-8", "id\ttext\n1\ttabs, as in TSV\n2\t\"a\ttab\"\n"),
    (",", "utf-8", "id,text\n1,日本語。\n2,😀\u2028é\n"),
    (",", "utf-8", "id,text\n1," + "long " * 600 + "\n2,\"" + "wide\n" * 600 + "\"\n"),
    (",", "utf-8", "c0,c1,c2,c3,c4,c5,c6,c7,c8,c9,c10,c11,c12,c13,c14,c15,c16,text\n" + "x," * 17 + "the last of many\n"),
]


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    lines = []
    for separator, encoding, content in TABLES:
        data = content.encode(encoding)
        rows = csv.DictReader(io.StringIO(data.decode(encoding), newline=""), delimiter=separator)
        texts = [row["text"] for row in rows if row]
        table = pandas.read_csv(io.BytesIO(data), sep=separator, encoding=encoding, dtype=str, keep_default_na=False)
        if texts != list(table["text"]):
            raise SystemExit(f"csv and pandas differ: {content!r}: {texts} {list(table['text'])}")
        lines.append(json.dumps({"encoding": encoding, "content": content, "texts": texts}) + "\n")
    (folder / "tables.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
