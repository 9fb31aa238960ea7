"""Damage to files: of their bytes, and of what is behind the first parser."""

import gzip
import io
import json
import pickletools
import struct
import warnings
import zipfile

NUMBERS = [b"0", b"-1", b"1e400", b"18446744073709551615", b"1.5", b"null", b"99999999", b"4294967296", b"-0"]
# Values where a format has a number.
INTEGERS = [0, 1, -1, 255, 256, 65535, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, 1 << 63,
            (1 << 64) - 1]


def raw(rng, content):
    """Damages bytes, or the numbers of a text."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if not content:
            return bytes(content)
        at = rng.randrange(len(content))
        # The beginning of a binary file has its structure.
        at = rng.choice([at, at % 16, at % 1024 % len(content)])
        kind = rng.randrange(9)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            del content[at:at + rng.choice([1, 4, 100])]
        elif kind == 3:
            part = content[max(0, at - rng.randrange(1, 200)):at]
            # A parser may recurse once for each.
            content[at:at] = part * rng.choice([1, 1, 1, 100_000 // max(1, len(part))])
        elif kind == 4:
            content[at:at] = rng.choice([b"\0", b"\xff\xfe", b"\x1b[2J", b"\n", b'"', b"{", b"[" * 2000, b"\r\n", b"../"])
        elif kind == 5:
            content += bytes(rng.randrange(256) for _ in range(rng.randrange(1, 64)))
        elif kind == 6:
            content[at:at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, (1 << 62).to_bytes(8, "little")])
        else:
            digits = [i for i, byte in enumerate(content[:20000]) if 48 <= byte <= 57]
            if digits:
                first = last = rng.choice(digits)
                while last < len(content) and 48 <= content[last] <= 57:
                    last += 1
                content[first:last] = rng.choice(NUMBERS)
    return bytes(content)


def lines(rng, content):
    """Damages a text by lines: drops, repeats, swaps and joins them."""
    parts = content.splitlines(keepends=True)
    if len(parts) < 2:
        return raw(rng, content)
    at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
    kind = rng.randrange(5)
    if kind == 0:
        del parts[at]
    elif kind == 1:
        parts[at:at] = [parts[at]] * rng.choice([1, 2, 1000])
    elif kind == 2:
        parts[at], parts[other] = parts[other], parts[at]
    elif kind == 3:
        parts[at] = parts[at].rstrip(b"\r\n")
    else:
        parts[at] = raw(rng, parts[at])
    return b"".join(parts)


class Members(list):
    """The members of a JSON object as pairs, so that a key can occur twice."""


class Literal(str):
    """A text that is written as it is."""


def spell(value):
    """Writes JSON."""
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, Members):
        return "{" + ",".join(f"{json.dumps(key)}:{spell(member)}" for key, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(spell, value)) + "]"
    return json.dumps(value)


def containers(value):
    """Returns the objects and arrays in a value that have a member, each once: after a swap, one may hold itself."""
    found, seen = [], set()
    pending = [value]
    while pending:
        at = pending.pop()
        if isinstance(at, list) and at and id(at) not in seen:
            seen.add(id(at))
            found.append(at)
            pending.extend(member for _, member in at) if isinstance(at, Members) else pending.extend(at)
    return found


def other_value(rng, value):
    """Returns what a reader may not expect in place of a value."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice([None, True, False, "", 0, [], Members(), [None], Members([["a", []]])])
    if kind == 1:
        return Literal(rng.choice(NUMBERS).decode())
    if kind == 2:
        return rng.choice(INTEGERS)
    if kind == 3:
        return Literal(rng.choice(["[", '{"a":']) * rng.choice([50, 200, 5000]))
    if kind == 4 and isinstance(value, str):
        return rng.choice([value + "\u0000", value[1:], value * 50, "../" + value, "\ud800" + value, "\u202e\u001b[2J" + value,
                           "/dev/zero", "x" * 100_000])
    if isinstance(value, int) and not isinstance(value, bool):
        return value + rng.choice([-1, 1, 1000])
    return [value]


def json_value(rng, value):
    """Damages a parsed JSON value in place."""
    inner = containers(value)
    if not inner:
        return
    at = rng.choice(inner)
    index = rng.randrange(len(at))
    kind = rng.randrange(7)
    if kind == 0:
        del at[index]
    elif kind == 1:
        at.insert(index, at[index])
    elif kind == 2:
        other = rng.choice(inner)
        there = rng.randrange(len(other))
        if isinstance(at, Members) == isinstance(other, Members):
            at[index], other[there] = other[there], at[index]
    elif kind == 3 and isinstance(at, Members):
        at[index] = [rng.choice([at[index][0] + "x", "", rng.choice(at)[0]]), at[index][1]]
    elif kind == 4 and not isinstance(at, Members):
        at *= rng.choice([2, 100])
    elif isinstance(at, Members):
        at[index] = [at[index][0], other_value(rng, at[index][1])]
    else:
        at[index] = other_value(rng, at[index])


def parse(content):
    return json.loads(content, object_pairs_hook=lambda pairs: Members(map(list, pairs)))


def structured_json(rng, content):
    """Damages the value of a JSON text. A value may refer to itself after a swap: then the bytes are damaged."""
    try:
        value = parse(content)
        for _ in range(rng.choice([1, 1, 2, 4])):
            json_value(rng, value)
        return spell(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return raw(rng, content)


def json_lines(rng, content):
    """Damages some lines of a JSON lines file."""
    parts = content.splitlines()
    if not parts:
        return content
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(parts))
        parts[at] = structured_json(rng, parts[at])
    return b"\n".join(parts) + b"\n"


def safetensors(rng, content):
    """Damages the header of a safetensors file and keeps its length right, or some values of its tensors."""
    length = int.from_bytes(content[:8], "little")
    header, values = content[8:8 + length], bytearray(content[8 + length:])
    if rng.randrange(4) == 0:
        for _ in range(rng.choice([1, 10, len(values) // 4])):
            at = rng.randrange(len(values) // 4) * 4
            values[at:at + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), -float("inf"), 3e38, 1e-45]))
        return content[:8 + length] + bytes(values)
    try:
        tensors = parse(header)
    except ValueError:
        return raw(rng, content)
    for _ in range(rng.choice([1, 1, 2])):
        tensor(rng, tensors, len(values))
    header = spell(tensors).encode("utf-8", "surrogatepass")
    return len(header).to_bytes(8, "little") + header + bytes(values)


def tensor(rng, tensors, end):
    """Damages a tensor of a header; `end` is where the values end."""
    named = [entry for entry in tensors if isinstance(entry[1], Members) and entry[0] != "__metadata__"]
    if not named or rng.randrange(4) == 0:
        return json_value(rng, tensors)
    entry, other = rng.choice(named), rng.choice(named)
    members = dict(map(tuple, entry[1]))
    offsets = members.get("data_offsets")
    first, last = offsets if isinstance(offsets, list) and len(offsets) == 2 else (0, end)
    kind = rng.randrange(6)
    if kind == 0:
        members["dtype"] = rng.choice(["F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "f32", "", 32])
    elif kind == 1:
        members["shape"] = rng.choice([[], [0], [-1], [1 << 40, 1 << 40], [(1 << 64) - 1], [1] * 1000, [1.5], "32"])
    elif kind == 2:
        members["data_offsets"] = rng.choice([[first, end + 4], [end, end + last], [last, first], [first, 1 << 63], [first],
                                              [first + 1, last + 1], [0, end], [first, first], []])
    elif kind == 3:
        members["data_offsets"], theirs = dict(map(tuple, other[1])).get("data_offsets"), offsets
        other[1][:] = [[key, theirs if key == "data_offsets" else value] for key, value in other[1]]
    elif kind == 4:
        entry[0], other[0] = other[0], entry[0]
    else:
        entry[0] += rng.choice(["x", "\0", "/../x", ".weight"])
    entry[1][:] = map(list, members.items())


# Template code that takes long or much memory, or that nothing defines.
TEMPLATES = [
    "{% for a in range(1000000000) %}x{% endfor %}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ range(4000000000) | list | length }}",
    "{{ 'x' * 1000000000000 }}",
    "{{ ('x' * 1000000) * 1000000 }}",
    "{{ [0] * 10000000000 }}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
    "{% set ns = namespace(s='x') %}{% for i in range(12) %}{% set ns.s = ns.s.replace('x', 'xxxxxxxxxx') %}{% endfor %}",
    "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n) }}{% endfor %}{% endmacro %}{{ f(0) }}",
    "{% include 'chat_template' %}", "{% extends 'chat_template' %}", "{% import 'x' as y %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 400 + "]" * 400 + " }}",
    "{{ " + "-" * 20000 + "1 }}",
    "{{ 1" + " + 1" * 20000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{% if 1 %}" * 100,
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ messages | indent(1000000000) }}", "{{ 'x' | indent(4000000000) }}", "{{ 'x'.center(4000000000) }}",
    "{{ '%1000000000d' | format(1) }}", "{{ '{:>100000000000}'.format(1) }}",
    "{{ 9223372036854775807 + 1 }}", "{{ 9 ** 9 ** 9 ** 9 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ -9223372036854775808 // -1 }}",
    "{{ 'abc'[9223372036854775807:-9223372036854775808:-1] }}", "{{ messages[::0] }}", "{{ messages[1e400] }}",
    "{{ nothing.of.this }}", "{{ messages.role.x }}", "{{ messages | nosuch }}", "{{ messages[0]['content'].nosuch() }}",
    "{{ raise_exception(messages) }}", "{{ strftime_now('%!') }}", "{{ strftime_now('%Y' * 100000) }}", "{{ namespace() }}",
    "{{ messages | map(attribute='x' * 9) | list }}", "{{ messages | batch(0) | list }}", "{{ messages | slice(0) | list }}",
    "{{ messages | batch(1000000000000, 'x') | list }}", "{{ messages | slice(1000000000000) | list }}",
    "{{ 'a' | replace('', 'x' * 1000) }}", "{{ 'x'.split('') }}", "{{ 'x' | wordwrap(0) }}", "{{ 1 | round(400) }}",
    "{{ 1.5 | round(-2147483648) }}", "{{ '1' * 400 | int }}", "{{ '9' | int(base=99) }}", "{{ cycler() }}", "{{ joiner }}",
    "{{ dict(a=1)['b'] }}", "{{ bos_token.x }}", "{{ loop }}", "{% break %}", "{% generation %}", "{% endgeneration %}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "{{ debug() }}", "{{ lipsum(1000000) }}",
    "{% set messages = 1 %}", "{% set add_generation_prompt = not add_generation_prompt %}", "\0", "\x1b[2J", "{{", "{%", "{#",
]


def template(rng, text):
    """Damages a chat template: adds code, or damages its own."""
    kind = rng.randrange(4)
    if kind < 2:
        # Between tags, where code can begin.
        places = [0, len(text), *(i for i in range(len(text)) if text.startswith("{%", i))]
        at = rng.choice(places)
        return text[:at] + rng.choice(TEMPLATES) + text[at:]
    if kind == 2:
        words = ["messages", "loop.first", "message['role']", "message['content']", "add_generation_prompt", "for", "endfor",
                 "if", "endif", "'", "|", "in", "user", "assistant", "m.role", "m.content"]
        word = rng.choice([word for word in words if word in text] or ["{"])
        return text.replace(word, rng.choice([*words, "", "1", "none", "x.y"]), rng.choice([1, -1]))
    return raw(rng, text.encode()).decode(errors="replace")


def template_file(rng, content):
    return template(rng, content.decode(errors="replace")).encode("utf-8", "surrogatepass")


def template_setting(rng, content):
    """Damages the template in a `tokenizer_config.json`, or anything else in it."""
    settings = json.loads(content)
    if "chat_template" not in settings or rng.randrange(4) == 0:
        return structured_json(rng, content)
    changed = template(rng, settings["chat_template"])
    settings["chat_template"] = rng.choice([changed] * 6 + [[{"name": "default", "template": changed}], [changed]])
    return json.dumps(settings).encode()


# Expressions that take long on few characters, or that are none.
PATTERNS = ["(a+)+$", "(\\w+\\s?)+$", "(.*)*x", "(?=(.+)+)\\1$", "((a|aa)+)+$", "\\p{L}{1,1000}{1,1000}", "(", "[", "", ".{0,0}", "(?<!x)",
            "(?<=.*)a", "\\1", "(?i)" * 3000, "(" * 3000 + ")" * 3000, "a{4000000000}", "\\x{ffffffff}", "(?R)", "^", "\\b"]


def tokenizer(rng, content):
    """Damages a `tokenizer.json`: its expressions, its ids and its pairs, or anything."""
    if rng.randrange(3) == 0:
        return structured_json(rng, content)
    file = json.loads(content)
    model, added = file["model"], file["added_tokens"]
    kind = rng.randrange(6)
    if kind == 0:
        pattern = {"type": "Split", "pattern": {"Regex": rng.choice(PATTERNS)}, "behavior": "Isolated", "invert": rng.random() < 0.2}
        file["pre_tokenizer"] = rng.choice([pattern, {"type": "Sequence", "pretokenizers": [pattern] * rng.choice([1, 1000])}])
    elif kind == 1:
        token = rng.choice(list(model["vocab"]))
        model["vocab"][token] = rng.choice([*INTEGERS, None, "1", rng.randrange(300)])
    elif kind == 2 and model["merges"]:
        at = rng.randrange(len(model["merges"]))
        model["merges"][at] = rng.choice([["a", "zz"], ["a"], "a", "a b c", ["", ""], ["\u0120" * 5000, "a"], model["merges"][at - 1]])
    elif kind == 3:
        token = {"id": rng.choice([*INTEGERS, 5, 300]), "content": rng.choice(["", "a", "<|end|>", "x" * 70000, "\0", "\x1b[2J", " "]),
                 "special": rng.random() < 0.5, "single_word": rng.random() < 0.2, "lstrip": rng.random() < 0.2, "rstrip": False,
                 "normalized": rng.random() < 0.2}
        added.insert(rng.randrange(len(added) + 1), token)
    elif kind == 4:
        pattern = {"String": rng.choice(["", "a", " "])} if rng.random() < 0.5 else {"Regex": rng.choice(PATTERNS)}
        file["normalizer"] = rng.choice([{"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "x" * 9},
                                         {"type": "Replace", "pattern": pattern, "content": "x" * rng.choice([0, 1, 10000])},
                                         {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 100}])
    else:
        model[rng.choice(["dropout", "byte_fallback", "ignore_merges", "unk_token", "type", "continuing_subword_prefix"])] = rng.choice(
            [0.5, True, "x", "Unigram", "WordPiece", None, -1])
    return json.dumps(file).encode()


def pickle(rng, content):
    """Damages the operations of a pickle: its numbers and texts, or the operations themselves."""
    try:
        ops = [(op, at) for op, _, at in pickletools.genops(content)]
    except ValueError:
        return raw(rng, content)
    ends = [at for _, at in ops[1:]] + [len(content)]
    index = rng.randrange(len(ops))
    (op, at), end = ops[index], ends[index]
    kind = rng.randrange(6)
    if kind == 0:
        return content[:at] + content[end:]
    if kind == 1:
        return content[:at] + content[at:end] * rng.choice([2, 100, 5000]) + content[end:]
    if kind == 2:
        added = rng.choice([b"(" * 5000, b"]" * 5000, b"\x8c\xff", b"X\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f", b"\x8a\xff", b"0", b"2",
                            b"R", b"b", b"}", b")", b"cos\nsystem\n", b"cbuiltins\neval\n(X\x01\x00\x00\x001tR", b"Q", b".", b"\x88", b"N",
                            b"h\x00", b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff", b"(h\x00h\x00h\x00l" * 200, b"G\x7f\xf0" + b"\0" * 6])
        return content[:at] + added + content[at:]
    if kind == 3:
        other = rng.randrange(len(ops))
        piece = content[ops[other][1]:ends[other]]
        return content[:at] + piece + content[end:]
    # Numbers are most of what decides how much is read.
    numbers = [(op, at, end) for (op, at), end in zip(ops, ends) if op.name in ("BININT", "BININT1", "BININT2", "BINUNICODE", "LONG1")]
    if not numbers:
        return raw(rng, content)
    op, at, end = rng.choice(numbers)
    value = rng.choice(INTEGERS)
    if op.name == "BINUNICODE":
        text = rng.choice([content[at + 5:end] + b"x", b"", b"\xff\xfe", b"../../x", b"model", b"x" * 70000])
        changed = b"X" + struct.pack("<I", len(text)) + text
    elif -(1 << 31) <= value < 1 << 31:
        changed = b"J" + struct.pack("<i", value)
    else:
        changed = b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
    return content[:at] + changed + content[end:]


def archive(rng, content, damages):
    """Damages an entry of a zip, with the right checksum, or its list of entries. `damages` returns the damage for a
    name."""
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        entries = [(info.filename, info.compress_type, source.read(info)) for info in source.infolist()]
    at = rng.randrange(len(entries))
    name, method, inside = entries[at]
    kind = rng.randrange(8)
    if kind == 0:
        del entries[at]
    elif kind == 1:
        other = rng.choice(["../" + name, "/" + name, name.upper(), "", "x" * 60000, "\0" + name, name + "/", rng.choice(entries)[0], "\x1b[2J"])
        entries[at] = (other, method, inside)
    elif kind == 2:
        entries.insert(at, (name, method, damages(name)(rng, inside)))
    elif kind == 3:
        entries[at] = (name, rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]), inside)
    elif kind == 4:
        entries[at] = (name, zipfile.ZIP_DEFLATED, inside + bytes(rng.choice([100] * 6 + [10_000_000] * 3 + [300_000_000])))
    else:
        entries[at] = (name, method, damages(name)(rng, inside))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target, warnings.catch_warnings():
        # Of names that occur twice.
        warnings.simplefilter("ignore")
        for name, method, inside in entries:
            info = zipfile.ZipInfo(name or "x")
            # The constructor ends a name at a zero.
            info.filename = name
            info.compress_type = method
            target.writestr(info, inside)
    return packed.getvalue()


def gzipped(inner):
    """Returns damage to the content of a gzip file, which gets the right checksum."""
    def damage(rng, content):
        changed = inner(rng, gzip.decompress(content))
        kind = rng.randrange(8)
        if kind == 0:
            changed += bytes(30_000_000)
        packed = gzip.compress(changed, 1)
        return packed + rng.choice([b"", b"", b"", b"", packed, b"\0" * 100, b"\x1f\x8b"])
    return damage


def zstandard(rng, content):
    """Writes a frame of Zstandard around text, with raw and run-length blocks. It may lie about its sizes."""
    true = [b"\x00\x58"] * 6
    frame = bytearray(b"\x28\xb5\x2f\xfd")
    frame += rng.choice([*true, b"\x00\xff", b"\x20\x10", b"\xa0\xff\xff\xff\x7f", b"\x03\xff\xff\xff\xff\x58", b"\x08\x58"])
    text = raw(rng, b"The fox looked at the moon.\n" * rng.choice([1, 50, 4000]))
    count = rng.choice([1, 3, 2000])
    for number in range(count):
        piece = text[:rng.choice([0, 100, len(text)])][:100_000]
        kind = rng.choice([0] * 9 + [1] * 9 + [2, 3])
        size = rng.choice([len(piece)] * 18 + [len(piece) + 1, (1 << 21) - 1])
        is_last = number == count - 1
        frame += (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + (b"x" if kind == 1 else piece)
    return bytes(frame) if rng.randrange(3) else content + bytes(frame)


def thrift_numbers(content, begin, end):
    """Returns the first and the last position of each variable-length number in a structure of Thrift's compact protocol."""
    found = []

    def number(at):
        last = at
        while content[last] & 0x80:
            last += 1
        found.append((at, last + 1))
        value = 0
        for i in range(last, at - 1, -1):
            value = value << 7 | content[i] & 0x7F
        return value, last + 1

    def skip(kind, at):
        if kind in (1, 2):
            return at
        if kind == 3:
            return at + 1
        if kind in (4, 5, 6):
            return number(at)[1]
        if kind == 7:
            return at + 8
        if kind == 8:
            length, at = number(at)
            return at + length
        if kind in (9, 10):
            size, inner, at = content[at] >> 4, content[at] & 15, at + 1
            if size == 15:
                size, at = number(at)
            for _ in range(size):
                at = at + 1 if inner in (1, 2) else skip(inner, at)
            return at
        return structure(at)

    def structure(at):
        while at < end and content[at]:
            short, kind, at = content[at] >> 4, content[at] & 15, at + 1
            if not short:
                at = number(at)[1]
            at = skip(kind, at)
        return at + 1

    structure(begin)
    return [(first, last) for first, last in found if last <= end]


def parquet(rng, content):
    """Damages the numbers of a Parquet file's footer, which gets the right length, or the bytes of its pages and footer."""
    length = int.from_bytes(content[-8:-4], "little")
    begin = len(content) - 8 - length
    footer = bytearray(content[begin:-8])
    kind = rng.randrange(4)
    if kind == 0:
        pages = bytearray(content[:begin])
        for _ in range(rng.choice([1, 3])):
            pages[rng.randrange(4, begin)] = rng.choice([0, 0xFF, rng.randrange(256)])
        return bytes(pages) + content[begin:]
    if kind == 1:
        for _ in range(rng.choice([1, 3])):
            footer[rng.randrange(length)] = rng.choice([0, 0xFF, rng.randrange(256)])
    else:
        for _ in range(rng.choice([1, 1, 2])):
            try:
                first, last = rng.choice(thrift_numbers(footer, 0, len(footer)))
            except IndexError:
                break
            value = rng.choice(INTEGERS) % (1 << 64)
            changed = bytearray()
            while value > 0x7F:
                changed.append(value & 0x7F | 0x80)
                value >>= 7
            footer[first:last] = changed + bytes([value])
    return content[:begin] + bytes(footer) + len(footer).to_bytes(4, "little") + content[-4:]


def tokens(rng, content):
    """Damages a file of tokens of 16 bits: ids that the vocabulary lacks, or half a token."""
    content = bytearray(content)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(content[:rng.choice([0, 1, 2, 3, len(content) // 2 | 1])])
    for _ in range(rng.choice([1, 100, len(content) // 2])):
        at = rng.randrange(len(content) // 2) * 2
        content[at:at + 2] = rng.choice([b"\xff\xff", b"\0\0", struct.pack("<H", rng.randrange(65536))])
    return bytes(content)
