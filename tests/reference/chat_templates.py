"""Writes reference.json into a folder with a tokenizer and a chat template of Hugging Face: the ids of ragged
texts and of ten conversations, as transformers has them.

    python chat_templates.py FOLDER
    WGPT_CHAT_FOLDER=FOLDER cargo test --release --lib real_templates -- --ignored

No folder is in the repository: SmolLM2's and Qwen3's are meant. Made with transformers 5.24, without PyTorch.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "Hello, world! It's 12345 o'clock; we'LL see.\n\n\tdef f(x):\r\n        return x**2  # ok\n",
    "  leading   and trailing  ",
    "Ünïcödé naïve cafés — “quotes” … €5.000,00 № 7",
    "Привет, как дела? Съешь ещё этих мягких французских булок.",
    "Γειά σου Κόσμε! ἄνδρα μοι ἔννεπε, μοῦσα",
    "你好，世界！今天天气很好。我有３个苹果。",
    "こんにちは世界。カタカナとひらがな、漢字。ﾊﾝｶｸ",
    "안녕하세요 세계! 한국어 텍스트 123",
    "مرحبا بالعالم! كيف حالك؟ ١٢٣",
    "שלום עולם, מה שלומך?",
    "नमस्ते दुनिया! आप कैसे हैं? १२३",
    "สวัสดีชาวโลก ภาษาไทย",
    "Xin chào thế giới; tiếng Việt: ườn, e\u0301, a\u0302\u0301",
    "😀👩‍👩‍👧‍👦🇩🇪👍🏽 🤖",
    "\u00a0\u2003\u200b\ufeff x\u2028y\u0000z\u007f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𒀀 🂡",
    "ﬁ ﬂ Å Å ㎏ ½ Ⅷ",
    "a" * 300 + " " * 300 + "\n" * 20 + "1" * 50,
    "if (x) {\n\tfoo();\n\n\n}\n);\n  };\n//////////----",
    "<think>a</think> <tool_call> &lt; < |im_end| > <|",
]

REASONED = "<think>\nAdd them.\n</think>\n\nIt is 4."


def conversation(*texts, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    for at, text in enumerate(texts):
        messages.append({"role": ["user", "assistant"][at % 2], "content": text})
    return messages


CONVERSATIONS = [
    conversation("Hello!", "Hi."),
    conversation("Hello!", "Hi.", system="Be brief."),
    conversation("2 + 2?", "4", "And 3 + 3?", "6", "Thanks", "You're welcome!"),
    conversation("2 + 2?", REASONED, "And 3 + 3?", REASONED.replace("4", "6")),
    conversation("2 + 2?", REASONED, "And?", "Nothing.", system="Think.\n\nTwice."),
    conversation(TEXTS[0], TEXTS[5], TEXTS[9], TEXTS[13].strip()),
    conversation("", "", "x", "y"),
    conversation("  spaces  ", "trailing \n", "\n\nlines", "- a\n- b\n"),
    conversation("<tool_response>\nx\n</tool_response>", "ok", "no", "yes"),
    conversation(*TEXTS[2:12], system=TEXTS[12]),
]


def main(folder):
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Not the class that the folder names: transformers 5 gives GPT-2's another pre-tokenizer than the file has.
    templates = PreTrainedTokenizerFast.from_pretrained(folder)

    def ids(messages, **options):
        ours = templates.apply_chat_template(messages, **options)["input_ids"]
        text = templates.apply_chat_template(messages, tokenize=False, **options)
        assert ours == plain.encode(text, add_special_tokens=False).ids
        return ours

    texts = [{"text": text, "ids": plain.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    conversations = [
        {
            "messages": messages,
            "ids": ids(messages),
            "prompt": ids(messages[:-1], add_generation_prompt=True),
            "without_thought": ids(messages[:-1], add_generation_prompt=True, enable_thinking=False),
        }
        for messages in CONVERSATIONS
    ]
    reference = {"texts": texts, "conversations": conversations}
    (folder / "reference.json").write_text(json.dumps(reference))


main(Path(sys.argv[1]))
