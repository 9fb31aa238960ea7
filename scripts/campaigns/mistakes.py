"""Makes mistakes in the program, one at a time, and runs the tests that have to notice.

A copy of the sources gets the mistakes that the seed chooses, each behind a switch, so that it is built once. Then every test
runs alone and records which switches it reaches, and each mistake is made for the tests that reach it: those of the
same folder first, then the shortest, until one fails, takes five times as long, or the next would be beyond four
minutes. What no test notices is printed. The check of the window is a test, too, where its tools are installed.

Needs git, cargo and what the tests need. Builds in the target folder of the repository, whose dependencies it
uses, and puts the program there back afterwards.
"""

import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What decides whether a run survives: folders and files of src/.
ATTACKED = ["train", "runs", "plan", "worker", "ranks", "protocol/recovery.rs"]
# What the tests on this machine cannot build, or only look at by eye.
LEFT_OUT = ["worker/browser", "train/reference"]

# The test programs that look at them. Tests of several processes are ignored elsewhere.
PROGRAMS = [["--lib"], *(["--test", name] for name in ("cli", "budget", "memory", "model", "gui"))]
IGNORED = "mpirun"

# Some mistakes change nothing that a test could notice. It is a finding if more than this part is unnoticed, by
# more than chance explains.
MOST_UNNOTICED = 0.1

# The seconds of tests for a mistake.
MOST_SECONDS = 240

SWITCH = '''
#[doc(hidden)]
pub mod mistakes {
    use std::io::Write;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    static MADE: LazyLock<Option<usize>> =
        LazyLock::new(|| std::env::var("MISTAKE").ok()?.parse().ok());
    static REACHED: LazyLock<Option<std::ffi::OsString>> =
        LazyLock::new(|| std::env::var_os("MISTAKES_REACHED"));
    static SEEN: [AtomicBool; %d] = [const { AtomicBool::new(false) }; %d];

    /// Returns true if this mistake is to be made.
    #[deprecated = "so that the compiler lists what it compiles"]
    pub fn made(nth: usize) -> bool {
        if let Some(path) = &*REACHED && !SEEN[nth].swap(true, Relaxed) {
            let file = std::fs::File::options().create(true).append(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(format!("{nth}\\n").as_bytes()));
        }
        *MADE == Some(nth)
    }
}
'''

COMPARISONS = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > "}
SUMS = {" + ": " - ", " - ": " + ", " * ": " / ", " / ": " * "}
LOGIC = {" && ": " || ", " || ": " && "}


def outside(text):
    """Returns the text with blanks for all that stands in brackets or quotes."""
    plain, depth, quoted = [], 0, False
    for at, char in enumerate(text):
        if char == '"' and text[at - 1:at] != "\\":
            quoted = not quoted
        closes = char in ")]}"
        depth -= closes and not quoted
        plain.append(" " if quoted or depth > 0 else char)
        depth += char in "([{" and not quoted
    return "".join(plain)


def swapped(text, table):
    """Returns the text with its one operator of the table replaced, or None."""
    plain = outside(text)
    found = [(plain.index(old), old) for old in table if plain.count(old) == 1]
    others = sum(plain.count(old) for old in table)
    if others != 1 or re.search(r"::<|->|\bas\b|\|", plain) and table is not LOGIC:
        return None
    at, old = found[0]
    return text[:at] + table[old] + text[at + len(old):]


def choice(nth, wrong, right):
    return f"if crate::mistakes::made({nth}) {{ {wrong} }} else {{ {right} }}"


def mistakes_of(line, before, after, signature):
    """Yields what can go wrong in a line: its kind, and a function from the number of the switch to the new line."""
    condition = re.match(r"^(\s*(?:\} else )?(?:if|while) )(?!let )(.+)( \{)$", line)
    guard = re.match(r"^(\s*\S.* if )(?!let )(.+)( => .*)$", line)
    match = condition or guard
    if match and " let " not in match[2] and "=>" not in match[2]:
        head, text, tail = match.groups()
        yield "negated condition", lambda nth: f"{head}crate::mistakes::made({nth}) != ({text}){tail}"
        for kind, table in (("other comparison", COMPARISONS), ("other connective", LOGIC)):
            wrong = swapped(text, table)
            if wrong and not (table is COMPARISONS and re.search(r"&&|\|\|", text)):
                yield kind, lambda nth, wrong=wrong: f"{head}({choice(nth, wrong, text)}){tail}"
    binding = re.match(r"^(\s*let (?:mut )?\w+(?:: [\w<>]+)? = )([^;{}]+)(;)$", line)
    if binding:
        wrong = swapped(binding[2], SUMS)
        if wrong:
            yield "other operation", lambda nth: f"{binding[1]}{choice(nth, wrong, binding[2])};"
    words = "let|return|use|const|static|type|pub|fn|mod|break|continue|else|impl|assert|debug_assert|unreachable"
    statement = re.match(rf"^(\s+)(?!(?:{words})\b)((?:\*)?[a-z_][\w.:]*.*;)$", line)
    begins = before.rstrip().endswith(("{", "}", ";")) or before.strip().startswith("//")
    if statement and begins and not outside(statement[2]).count("{"):
        yield "statement left out", lambda nth: (
            f"{statement[1]}if !crate::mistakes::made({nth}) {{ {statement[2]} }}")
    if signature.endswith("-> bool {") and after.strip() == "}" and not re.search(r"[;{}]$|^\s*\.", line):
        yield "negated answer", lambda nth: f"crate::mistakes::made({nth}) != ({line.strip()})"


def sites(root):
    """Returns all mistakes: (file, index of the line, kind, function for the new line)."""
    found = []
    for attacked in ATTACKED:
        path = root / "src" / attacked
        single = root / "src" / f"{attacked}.rs"
        files = sorted(path.rglob("*.rs")) if path.is_dir() else [path]
        files += [single] if single.exists() else []
        for file in files:
            name = str(file.relative_to(root / "src"))
            if name.startswith(tuple(LEFT_OUT)) or "tests" in pathlib.Path(name).with_suffix("").parts:
                continue
            lines = file.read_text().split("\n")
            for at, line in enumerate(lines):
                if re.match(r"(pub\S* )?mod \w*tests? \{", line):
                    break
                if line.strip().startswith(("//", "#")):
                    continue
                before, after = (lines[at - 1] if at else ""), lines[at + 1] if at + 1 < len(lines) else ""
                for kind, new in mistakes_of(line, before, after, before):
                    found.append((file, at, kind, new))
    return found


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


class Mistakes:
    """A copy of the sources with mistakes, its test programs, and who reaches what."""

    def __init__(self, campaign, count):
        self.campaign = campaign
        # Always in one place, so that the outputs of the build replace those of the last campaign.
        self.source = target() / "mistakes"
        shutil.rmtree(self.source, ignore_errors=True)
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, tracked.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.source / name)
        every = sites(self.source)
        campaign.random.shuffle(every)
        lines = set()
        self.chosen = []
        for site in every:
            # Some cannot be compiled, and a line takes one.
            if len(self.chosen) < count * 3 // 2 and (site[0], site[1]) not in lines:
                lines.add((site[0], site[1]))
                self.chosen.append(site)
        self.possible = len(every)
        self.whole = {file: file.read_text() for file, *_ in self.chosen}
        self.left = set(range(len(self.chosen)))
        # Cargo would take a package of the same version for the one without mistakes.
        manifest = self.source / "Cargo.toml"
        manifest.write_text(re.sub(r'^(version = "[^"]+)', r"\1+mistakes", manifest.read_text(), count=1, flags=re.M))

    def describe(self, nth):
        file, at, kind, _ = self.chosen[nth]
        line = self.whole[file].split("\n")[at].strip()
        return f"{file.relative_to(self.source)}:{at + 1}: {kind}: {line}"

    def write(self):
        """Writes the sources with all mistakes that are left."""
        for file, text in self.whole.items():
            lines = text.split("\n")
            for nth in self.left:
                _, at, _, new = self.chosen[nth]
                if self.chosen[nth][0] == file:
                    lines[at] = new(nth)
            file.write_text("\n".join(lines))
        library = self.source / "src/lib.rs"
        self.library = getattr(self, "library", None) or library.read_text()
        library.write_text(self.library + SWITCH % (len(self.chosen), len(self.chosen)))

    def cargo(self, *args):
        env = {**os.environ, "CARGO_TARGET_DIR": str(target()), "CARGO_INCREMENTAL": "0"}
        done = subprocess.run(["cargo", *args, "--release", "--message-format=json"], cwd=self.source, env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return done, messages

    def at(self, messages, level):
        """Returns the mistakes in the lines that the compiler's messages of this level are about."""
        regions = [self.region(message["message"]["spans"]) for message in messages
                   if message.get("message", {}).get("level") == level and message["message"]["spans"]]
        return {nth for nth in self.left for file, first, last in regions
                if self.chosen[nth][0] == file and first <= self.chosen[nth][1] + 1 <= last}

    def region(self, spans):
        """Returns the file and the lines from the first to the last span. What moves a value is in between."""
        file = next(span["file_name"] for span in spans if span["is_primary"])
        within = [span for span in spans if span["file_name"] == file]
        return (self.source / file, min(span["line_start"] for span in within),
                max(span["line_end"] for span in within))

    def compile(self):
        """Leaves out the mistakes that are no Rust, then builds the test programs. Returns their paths."""
        for _ in range(30):
            self.write()
            done, messages = self.cargo("check", "--lib")
            if done.returncode == 0:
                # What is not for this machine is not compiled.
                self.left &= self.at(messages, "warning")
                break
            wrong = self.at(messages, "error")
            if not wrong:
                raise SystemExit("the sources with mistakes do not compile: " + done.stderr[-2000:])
            print(f"{len(wrong)} mistakes do not compile", flush=True)
            self.left -= wrong
        else:
            raise SystemExit("the sources with mistakes do not compile: " + done.stderr[-2000:])
        programs = []
        for program in PROGRAMS:
            done, messages = self.cargo("test", "--no-run", *program)
            if done.returncode:
                raise SystemExit("the tests with mistakes do not build: " + done.stderr[-2000:])
            programs += [message["executable"] for message in messages
                         if message.get("executable") and message.get("profile", {}).get("test")]
        return programs


class Test:
    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, command, folder

    def run(self, limit, **variables):
        """Returns True if the test passes in time."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("WGPT_")}
        env.update(variables, RAYON_NUM_THREADS="1")
        process = subprocess.Popen(self.command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            # A script removes what it has made.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            return False
        finally:
            # And what it has started.
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
            process.wait()


def tests_of(program, folder):
    """Lists the tests of a program, without those that are ignored for want of hardware."""
    def listed(*args):
        out = subprocess.run([program, "--list", *args], cwd=folder, capture_output=True, text=True).stdout
        return {line[:-len(": test")] for line in out.splitlines() if line.endswith(": test")}
    ignored = listed("--ignored")
    mpi = {name for name in ignored if name.split("::")[-1].startswith(IGNORED)} if shutil.which("mpirun") else set()
    names = sorted((listed() - ignored) | mpi)
    return [Test(name, [program, "--exact", name, "--include-ignored"], folder) for name in names]


def check_of_window(program, folder):
    """Returns the check of the window, if its tools are installed."""
    has_tools = all(map(shutil.which, ("Xvfb", "xdotool", "import")))
    return [Test("scripts/window-check.sh", [folder / "scripts/window-check.sh", program], folder)] if has_tools else []


def attack(campaign, count):
    """Makes `count` mistakes, and prints those that no test notices."""
    made = Mistakes(campaign, count)
    program = target() / "release/wgpt"
    kept = campaign.asks("program")
    if program.exists():
        shutil.copy2(program, kept)
    try:
        programs = made.compile()
        print(f"{len(made.left)} of {made.possible} possible mistakes are built in", flush=True)
        tests = [test for path in programs for test in tests_of(path, made.source)]
        tests += check_of_window(program, made.source)
        examine(campaign, made, tests, count)
    finally:
        if kept.exists():
            program.unlink(missing_ok=True)
            shutil.copy2(kept, program)


def examine(campaign, made, tests, count):
    """Finds out which tests reach which mistakes, then which of these tests notice."""
    reaches = {nth: [] for nth in made.left}

    def measure(at):
        test, log = tests[at], campaign.asks(f"reached-{at}")
        begin = time.monotonic()
        passed = test.run(600, MISTAKES_REACHED=str(log))
        seconds = time.monotonic() - begin
        reached = {int(line) for line in log.read_text().split()} if log.exists() else set()
        return test, passed, seconds, reached

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (test, passed, seconds, reached) in enumerate(pool.map(measure, range(len(tests)))):
            if not passed:
                print(f"left out: {test.name} fails without a mistake", flush=True)
                continue
            for nth in reached & made.left:
                reaches[nth].append((seconds, test))
            campaign.progress(f"{done + 1} of {len(tests)} tests")

    def notices(nth):
        folder = made.chosen[nth][0].relative_to(made.source / "src").parts[0]
        left = MOST_SECONDS
        for seconds, test in sorted(reaches[nth], key=lambda pair: (not pair[1].name.startswith(folder), pair[0])):
            left -= seconds
            if left < 0:
                break
            if not test.run(20 + 5 * seconds, MISTAKE=str(nth)):
                return nth, test.name
        return nth, None

    chosen = sorted(made.left)[:count]
    unnoticed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (nth, test) in enumerate(pool.map(notices, chosen), 1):
            if test:
                print(f"noticed by {test}: {made.describe(nth)}", flush=True)
            else:
                unnoticed += 1
                reach = f"{len(reaches[nth])} tests reach it" if reaches[nth] else "no test reaches it"
                print(f"unnoticed, {unnoticed} of {done}: {made.describe(nth)} ({reach})", flush=True)
            campaign.progress(f"{done} mistakes, {unnoticed} unnoticed")
    print(f"\n{len(chosen) - unnoticed} of {len(chosen)} mistakes were noticed")
    by_chance = 3 * math.sqrt(MOST_UNNOTICED * (1 - MOST_UNNOTICED) * len(chosen))
    if unnoticed > MOST_UNNOTICED * len(chosen) + by_chance:
        campaign.finding(f"{unnoticed} of {len(chosen)} mistakes were not noticed")
