"""Checks that `wgpt prepare` tokenizes as Hugging Face's library does with the same tokenizer.json.

    pip install tokenizers numpy   # checked with 0.23.3, 2.4.6
    python tests/reference/check_tokenizer.py WGPT TEXT TOKENIZER.json...     # WGPT: the program

TEXT is a file, to which characters of many scripts are added. It is tokenized with each of the files.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers

# Of each script some words, marks that are composed, signs, numbers, and white space of many kinds.
MORE = """
caf\u00e9 cafe\u0301 na\u00efve nai\u0308ve \u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 \u03ba\u03cc\u03c3\u03bc\u03b5
\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694 \u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd
1 12 123 1234 12345678 3.14 1,000,000 \u0664\u0662 \u00bd x\u00b2 I've you'LL don't DON'T we'd 's
\tif (a[i] != b) {  return "x";  }\r\n\r\n   \n \n\u00a0\u2003end   ...!!!\n\n#include <a.h>\U0001f600\U0001f469\u200d\U0001f680
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa          ----------------====
"""


def common(a: list[int], b: list[int]) -> int:
    """Returns the number of first tokens that are the same."""
    return next((at for at, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))


def main(wgpt: str, text_path: str, files: list[str]) -> None:
    text = Path(text_path).read_text(encoding="utf-8") + MORE
    for file in files:
        theirs = tokenizers.Tokenizer.from_file(file).encode(text, add_special_tokens=False).ids
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "text.txt", Path(folder) / "data"
            source.write_bytes(text.encode())
            command = [wgpt, "prepare", source, "-o", out, f"--tokenizer={file}", "--quiet"]
            subprocess.run(command, check=True)
            meta = json.loads((out / "meta.json").read_text())
            dtype = {"u16": "<u2", "u32": "<u4"}[meta["dtype"]]
            ours = np.concatenate([np.fromfile(out / f"{split}.bin", dtype) for split in ["train", "val"]]).tolist()
        # The only document has an end, if the tokenizer knows one, and is cut in two, which changes a few tokens there.
        ended = ours[-1] != theirs[-1]
        same, back = common(ours, theirs), common(ours[-2 if ended else -1 :: -1], theirs[::-1])
        print(f"{file}: {len(theirs)} tokens, {same} the same from the start, {back} from the end")
        assert same + back >= len(theirs) - 4, f"wgpt has {ours[same:same + 8]}, the library {theirs[same:same + 8]}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
