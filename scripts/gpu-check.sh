#!/usr/bin/env bash
# Tests and measures wgpt on a machine with a GPU and a Vulkan driver. Needs neither compiler, Rust nor
# network. NVIDIA GPUs are also measured through CUDA, if wgpt was built with it.
#
#   scripts/gpu-check.sh [OPTIONS] [FOLDER]
#       Checks the binaries in FOLDER; default: the unpacked binaries, else the ones in
#       ${CARGO_TARGET_DIR:-target}/release, else the installed wgpt. Takes about ten minutes, and
#       leaves one file to send: out/gpu-check/gpu-check.md.
#
#       --parts LIST    parts to run, which always run in this order: facts (the devices and their
#                       drivers), selftest (the kernels), train, bench (kernels,steps), tests, torch.
#                       Run them one by one if no call may take long
#       --device LIST   devices, as for `wgpt --device` (vulkan:0, and cuda:0 if it exists); the
#                       others are compared with the first. The tests use every Vulkan adapter and
#                       every CUDA GPU
#       --dtypes LIST   dtypes (float32,tf32,bfloat16,float16); each device skips the ones that it lacks
#       --out DIR       folder for gpu-check.md, and for the records in it and the log (out/gpu-check);
#                       results that are already there are kept
#       --seconds S     the time to train in each dtype (60)
#       --batches LIST  micro-batches of the whole steps (4,8,16,32,64); skips the ones that the
#                       plan reduces for lack of memory
#       --within S      start nothing after S seconds, and let nothing run longer
#       --date TEXT     the date of this run (default: the clock's)
#       --quick         tiny models, to try the script on a machine without a GPU
#
#       Exits with 1 if a test failed or did not run, if a kernel is wrong, if a loss did not fall, or
#       if a device's losses differ from the CPU's by more than rounding.
#
#   scripts/gpu-check.sh --pack OUT.tar[.gz|.xz] [FOLDER]
#       Builds with CUDA (or takes the binaries of FOLDER), strips and packs them. Then, on the other
#       machine: tar -xf OUT.tar && wgpt-gpu-check/scripts/gpu-check.sh
#
#   scripts/gpu-check.sh --tables DIR [FROM...]
#       Writes DIR/gpu-check.md again, after adding the results in FROM: folders, or files that were
#       sent. Needs Python 3 and no GPU.
#
# Not `set -e`, because a part that fails is a result, and the next part still runs.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
packed='wgpt-gpu-check'
tests=(ops model memory)
# The prefix of the names of tests that need an NVIDIA GPU.
cuda_tests=every_cuda_card

fail() {
    echo "error: $*" >&2
    exit 2
}

absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$PWD/$1" ;;
    esac
}

# test_binary NAME: prints the newest one in $folder. Cargo leaves the binaries of earlier builds there.
test_binary() {
    local file newest=
    for file in "$folder/$1" "$folder/deps/$1"-????????????????; do
        if [[ -f $file && -x $file && (-z $newest || $file -nt $newest) ]]; then
            newest=$file
        fi
    done
    printf '%s' "$newest"
}

pack() {
    local tar stage name binary messages=
    tar=$(absolute "$1")
    stage=$scratch/$packed
    mkdir -p "$stage/bin" "$stage/tests" || fail "cannot write to $stage"
    if [[ -n $folder ]]; then
        [[ -x $folder/wgpt ]] || fail "no wgpt in $folder"
    else
        # cargo reports which files belong to this build.
        messages=$scratch/messages
        (cd "$root" && cargo test --release --no-run --features cuda --message-format=json \
            "${tests[@]/#/--test=}") >"$messages" || fail 'the build failed'
    fi
    for name in wgpt "${tests[@]}"; do
        if [[ -z $messages ]]; then
            binary=$folder/wgpt
            [[ $name == wgpt ]] || binary=$(test_binary "$name")
        else
            # This is the plain name, or the name with cargo's hash. The library's own tests are called
            # wgpt-HASH.
            local hash='-[0-9a-f]*'
            [[ $name == wgpt ]] && hash=
            binary=$(sed -n "s|.*\"executable\":\"\([^\"]*/$name$hash\)\".*|\1|p" "$messages" |
                tail -n 1)
        fi
        [[ -n $binary ]] || fail "no test binary of tests/$name.rs"
        strip -s -o "$stage/bin/$name" "$binary" 2>/dev/null || cp "$binary" "$stage/bin/$name"
    done
    # Packs the libraries that LLVM links, in case the other machine lacks them.
    mkdir "$stage/lib"
    ldd "$stage/bin/wgpt" | sed -nE 's#.* => (/.*/lib(stdc\+\+|gcc_s|z|zstd)\.so[^ ]*) .*#\1#p' |
        xargs -r cp -L -t "$stage/lib"
    cp -R "$root/tests/reference" "$stage/tests/"
    cp -R "$root/scripts" "$stage/"
    # The tests look for their reference data where the repository was at compile time.
    echo "$root" >"$stage/compiled-at"
    tar -C "$scratch" -caf "$tar" "$packed" || fail "cannot write $tar"
    ls -lh "$tar"
}

# --- records: one JSON object per line, so that the shell can append to them ----------------------

# Escapes stdin as the inside of a JSON string.
json_text() {
    LC_ALL=C tr -d '\000-\010\013-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/	/\\t/g' |
        awk '{ printf "%s%s", line, $0; line = "\\n" }'
}

json_string() {
    printf '"%s"' "$(printf '%s' "$1" | json_text)"
}

# Prints the lines of stdin as a JSON array of strings.
json_strings() {
    local line list=
    while IFS= read -r line; do
        list+=${list:+,}$(json_string "$line")
    done
    printf '[%s]' "$list"
}

# record FIELDS: adds a record. The file is complete after each, even if this script is killed.
record() {
    printf '{%s}\n' "$1" >>"$scratch/records"
    {
        echo '{"records":['
        sed '$!s/$/,/' "$scratch/records"
        echo ']}'
    } >"$out/gpu-check.json.new" && mv "$out/gpu-check.json.new" "$out/gpu-check.json"
}

say() {
    echo "$*" | tee -a "$out/log.txt" "$out/summary.txt"
}

# --- running with time limits ---------------------------------------------------------------------

# allowed SECONDS: prints the smaller of that and the rest of --within; fails if nothing is left.
allowed() {
    local left=$1
    if ((within > 0 && within - SECONDS < left)); then
        left=$((within - SECONDS))
    fi
    printf '%s' "$left"
    ((left > 3))
}

# limited SECONDS COMMAND...: runs it with its output in $scratch/stdout and stderr; sets code, seconds
# and why, which is empty after success. The command runs in the background, because the shell handles
# signals only in `wait`.
limited() {
    local limit start=$SECONDS
    code=0 seconds=0 why=
    : >"$scratch/stdout"
    : >"$scratch/stderr"
    if ! limit=$(allowed "$1"); then
        code=124 why='no time left'
        return
    fi
    shift
    echo "+ $*" >>"$out/log.txt"
    timeout -k 5 "$limit" "$@" </dev/null >"$scratch/stdout" 2>"$scratch/stderr" &
    child=$!
    wait "$child"
    code=$?
    child=
    seconds=$((SECONDS - start))
    cat "$scratch/stdout" "$scratch/stderr" >>"$out/log.txt"
    if ((code == 0)); then
        return
    elif ((seconds >= limit)); then
        why="not done after $limit s"
    # Hints mention memory for other reasons too.
    elif grep -v '^ *hint:' "$scratch/stderr" |
        grep -Eqi 'out[ _]?of[ _]?((device|host)[ _]?)?memory|not enough memory'; then
        why='out of memory'
    else
        why="exit code $code"
    fi
}

outcome() {
    printf '"exit":%d,"seconds":%d' "$code" "$seconds"
    if [[ -n $why ]]; then
        # The last lines report what happened.
        printf ',"error":%s,"stderr":"%s"' "$(json_string "$why")" \
            "$(tail -n 6 "$scratch/stderr" | json_text)"
    fi
}

# --- the parts ------------------------------------------------------------------------------------

# number KEY: prints the last number of that name in the JSON on stdin.
number() {
    sed -n "s/.*\"$1\":\(-\{0,1\}[0-9][0-9.eE+-]*\).*/\1/p" | tail -n 1
}

# Records what is known of the machine and its drivers.
check_facts() {
    limited 60 "$wgpt" doctor
    record "\"part\":\"facts\",$(outcome),\"text\":\"$(json_text <"$scratch/stdout")\""
    say "facts: ${why:-recorded}"
}

# Compares every kernel with the CPU, if this wgpt can.
check_selftest() {
    local device
    if ! "$wgpt" doctor --help 2>/dev/null | grep -q -e --kernels; then
        say 'self-test: this wgpt has none'
        return
    fi
    for device in "${devices[@]}"; do
        limited 200 "$wgpt" doctor --kernels --device="$device"
        ((code == 0)) || failed=1
        record "\"part\":\"selftest\",\"device\":\"$device\",$(outcome),$(
        )\"text\":\"$(json_text <"$scratch/stdout")\""
        say "self-test on $device: ${why:-$seconds s}"
    done
}

# The tests look for their data where they were compiled, so link that place to this folder.
link_data() {
    local compiled=$root above
    [[ -f $root/compiled-at ]] && compiled=$(cat "$root/compiled-at")
    if [[ -e $compiled/tests/reference ]]; then
        return
    fi
    above=$(dirname "$compiled")
    while [[ ! -e $above ]]; do
        made+=("$above")
        above=$(dirname "$above")
    done
    if mkdir -p "$(dirname "$compiled")" && ln -s "$root" "$compiled"; then
        linked=$compiled
    else
        say "cannot create $compiled, where the tests were compiled: those with reference data will fail"
    fi
}

unlink_data() {
    [[ -z $linked ]] || rm -f "$linked"
    # Removes the innermost folder first, and keeps folders that are no longer empty.
    ((${#made[@]} == 0)) || rmdir "${made[@]}" 2>/dev/null
    linked='' made=()
}

check_tests() {
    local name binary names=("${tests[@]}")
    # These need no GPU, but shaders/ next to them. They are not packed, and run only in a checkout.
    [[ -d $root/shaders ]] && names+=(shaders)
    if ((by_default)) && [[ -z $(test_binary ops) ]]; then
        say "tests: none in $folder"
        return
    fi
    link_data
    for name in "${names[@]}"; do
        binary=$(test_binary "$name")
        if [[ -z $binary ]]; then
            if [[ $name != shaders ]]; then
                say "tests $name: no binary in $folder"
                record "\"part\":\"tests\",\"name\":\"$name\",\"error\":\"no binary\""
                failed=1
            fi
            continue
        fi
        limited 500 env -C "$root" "$binary" --show-output
        ((code == 0)) || failed=1
        record_tests "$name"
    done
    # Software renderers take minutes for these.
    binary=$(test_binary ops)
    if [[ -n $binary ]] && grep -oE '\{[^{}]*\}' <<<"$found" | grep '"matrices":[1-9]' |
        grep -qv '"kind":"software"'; then
        limited 500 env -C "$root" "$binary" --show-output --ignored cooperative
        ((code == 0)) || failed=1
        record_tests 'ops, cooperative matrices'
    fi
    check_cuda_tests
    unlink_data
}

# record_tests NAME: records the output of the last test binary.
record_tests() {
    local name=$1 what result counts=()
    result=$(grep '^test result: ' "$scratch/stdout" | tail -n 1)
    for what in passed failed ignored; do
        counts+=("$(sed -n "s/.*[^0-9]\([0-9]\{1,\}\) $what.*/\1/p" <<<"$result")")
    done
    # Without a summary, count the tests that finished.
    [[ -n ${counts[0]} ]] || counts=("$(grep -c '^test .* ok$' "$scratch/stdout")" \
        "$(grep -c '^test .* FAILED$' "$scratch/stdout")" 0)
    # A green run that skipped the GPU would mean nothing, so these lines name the adapters that it
    # opened.
    record "\"part\":\"tests\",\"name\":\"$name\",$(outcome),\"passed\":${counts[0]},$(
    )\"failed\":${counts[1]},\"ignored\":${counts[2]},\"failures\":$(
        sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$scratch/stdout" | json_strings
    ),\"adapters\":$(
        cat "$scratch/stdout" "$scratch/stderr" | grep -E '^(vulkan|cuda):[0-9]+: ' | sort -u |
            json_strings
    )"
    say "tests $name: ${counts[0]} passed, ${counts[1]} failed, $seconds s${why:+, $why}"
}

# The tests that need an NVIDIA GPU are ignored by default.
check_cuda_tests() {
    local name binary
    if ! has cuda; then
        say "tests on CUDA: none, $no_cuda"
        record "\"part\":\"tests\",\"name\":\"CUDA\",\"error\":$(json_string "$no_cuda")"
        return
    fi
    for name in "${tests[@]}"; do
        binary=$(test_binary "$name")
        if [[ -n $binary ]] && "$binary" --list --ignored 2>/dev/null | grep -q "$cuda_tests"; then
            limited 500 env -C "$root" "$binary" --show-output --ignored "$cuda_tests"
            ((code == 0)) || failed=1
            record_tests "$name, CUDA"
        fi
    done
}

# variants DEVICE: prints the dtypes to measure it in.
variants() {
    local dtype known
    known=$(grep -oE '\{[^{}]*\}' <<<"$found" | grep -E "\"id\":\"$1[:\"]" | head -n 1 |
        sed -n 's/.*"dtypes":\[\([^]]*\)\].*/\1/p')
    for dtype in ${dtypes//,/ }; do
        [[ $known != *"\"$dtype\""* ]] || echo "$dtype"
    done
}

# dtype_refused DEVICE DTYPE: prints why the device does not support the dtype; fails if it does.
dtype_refused() {
    if [[ $2 != float32 ]] && ! timeout 60 "$wgpt" config check "--dtype=$2" --device="$1" \
        </dev/null >"$scratch/stdout" 2>"$scratch/stderr"; then
        sed -n 's/^error: //p' "$scratch/stderr" | head -n 1
    elif [[ $2 != float32 ]] && grep -q 'has no effect' "$scratch/stderr"; then
        sed -n 's/^warning: //p' "$scratch/stderr" | head -n 1
    else
        return 1
    fi
}

# Trains on the CPU first, in float32: the others are compared with it.
check_train() {
    local device dtype refused
    train cpu:0 float32
    for device in "${devices[@]}"; do
        for dtype in $(variants "$device"); do
            if [[ -e $scratch/losses.$device.$dtype ]]; then
                continue
            elif refused=$(dtype_refused "$device" "$dtype"); then
                say "train on $device in $dtype: $refused"
                record "\"part\":\"train\",\"device\":\"$device\",\"dtype\":\"$dtype\",$(
                )\"error\":$(json_string "$refused")"
            else
                train "$device" "$dtype"
            fi
        done
    done
    compare_losses
}

# train DEVICE DTYPE: writes the losses to $scratch/losses, one per line: kind, iteration, loss.
train() {
    local device=$1 dtype=$2 iters first last fell=false
    local losses=$scratch/losses.$device.$dtype
    # The CPU makes tens of these updates in a minute, a GPU up to all of them.
    local model=(--batch_size=16 --eval_iters=2 --max_iters=5000 --eval_interval=100)
    model+=("--max_time=${train_seconds}s")
    if ((quick)); then
        model=("${tiny[@]}" --batch_size=8 --eval_iters=2 --max_iters=20 --eval_interval=20)
        model+=(--warmup_iters=0)
    fi
    model+=("--dtype=$dtype" --sample_tokens=0)
    limited $((3 * train_seconds + 120)) "$wgpt" train --device="$device" --json --log_interval=1 \
        --preset=shakespeare-char --data=builtin:stories --run="$scratch/run" "${model[@]}"
    rm -rf "$scratch/run"
    # Ignore an incomplete last event.
    grep -E '^\{.*"event":"(start|plan|step|eval|replan|warning|error|done)".*\}$' \
        "$scratch/stdout" >"$scratch/events"
    sed -nE -e 's/.*"event":"eval","iter":([0-9]+),.*"val_loss":([-0-9.eE+]+).*/val \1 \2/p' \
        -e 's/.*"event":"step","iter":([0-9]+),.*"loss":([-0-9.eE+]+).*/train \1 \2/p' \
        "$scratch/events" >"$losses"
    # Evaluations always use the same windows, so two of them compare. A slow device makes only one.
    read -r first last < <(awk '{ if (!($1 in first)) first[$1] = $3; last[$1] = $3; count[$1]++ }
        END { kind = count["val"] > 1 ? "val" : "train"; print first[kind], last[kind] }' "$losses")
    iters=$(awk '$1 == "train" { count++ } END { print count + 0 }' "$losses")
    # Of many updates, some are enough to read.
    sed -E -i '/"event":"step","iter":[0-9]+[0-9][1-9],/d' "$scratch/events"
    if awk -v first="${first:-0}" -v last="${last:-0}" \
        'BEGIN { exit !(last > 0 && last < first) }'; then
        fell=true
    fi
    if ((code != 0)) || ! $fell; then
        failed=1
    fi
    record "\"part\":\"train\",\"device\":\"$device\",\"dtype\":\"$dtype\",$(outcome),$(
    )\"iters\":$iters,\"first_loss\":${first:-null},\"last_loss\":${last:-null},$(
    )\"fell\":$fell,\"events\":[$(paste -sd, "$scratch/events")]"
    say "train on $device in $dtype: loss ${first:-?} -> ${last:-?} in $iters iterations, $(
    )$seconds s${why:+, $why}"
}

# tolerance DTYPE: prints how much losses may differ, relatively, from the losses of the CPU in float32, before the first update and after it. The order of summation differs between devices, and
# updates amplify the rounding: between software Vulkan and the CPU, a model of 3 layers differed by
# 3e-8 before and 1e-7 within 200 updates. A wrong kernel differs by more than this.
tolerance() {
    case $1 in
    float32) echo 0.00001 0.001 ;;
    # Factors of products keep 10 bits instead of 23. In float16 the activations do too.
    tf32 | float16) echo 0.001 0.01 ;;
    # Factors and activations keep 7 bits.
    *) echo 0.005 0.03 ;;
    esac
}

compare_losses() {
    local device dtype wanted=cpu:0 before after off close
    local reference=$scratch/losses.$wanted.float32
    for device in "${devices[@]}"; do
        for dtype in $(variants "$device"); do
            local losses=$scratch/losses.$device.$dtype
            if [[ $losses == "$reference" || ! -s $losses || ! -s $reference ]]; then
                continue
            fi
            read -r before after < <(tolerance "$dtype")
            # Prints the largest difference before and after the first update, and the number of compared
            # losses. The slower device makes fewer updates.
            off=$(awk 'function off(a, b) { a = (a - b) / b; return a < 0 ? -a : a }
                NR == FNR { other[$1 " " $2] = $3; next }
                $1 " " $2 in other {
                    count++
                    far = off($3, other[$1 " " $2])
                    if ($2 == 0 && far > before) before = far
                    if ($2 > 0 && far > after) after = far
                }
                END { printf "%.3g %.3g %d", before, after, count }' \
                "$reference" "$losses")
            close=false
            if awk -v before="$before" -v after="$after" \
                '{ exit !($1 <= before && $2 <= after && $3 > 2) }' <<<"$off"; then
                close=true
            else
                failed=1
            fi
            read -r -a off <<<"$off"
            record "\"part\":\"losses\",\"device\":\"$device\",\"dtype\":\"$dtype\",$(
            )\"with\":\"$wanted\",\"compared\":${off[2]},$(
            )\"before\":${off[0]},\"after\":${off[1]},$(
            )\"before_allowed\":$before,\"after_allowed\":$after,\"close\":$close"
            say "losses of $device in $dtype compared with $wanted's: relative difference ${off[0]} before $(
            )the first update ($before allowed) and ${off[1]} after ($after allowed)"
        done
    done
}

# bench PART SECONDS FIELDS ARGUMENTS...: records what `wgpt bench` measures on $device.
bench() {
    local part=$1 limit=$2 fields=$3 report
    shift 3
    limited "$limit" "$wgpt" bench -v --device="$device" --json --only "$part" "$@"
    report=$(grep -E '^\{.*\}$' "$scratch/stdout" | tail -n 1)
    # cubecl only warns about a kernel that does not compile, and the kernel then takes no time, so this
    # is no measurement.
    if grep -q 'launch error happened' "$scratch/stderr"; then
        code=1 why='a kernel could not be launched' report=
        failed=1
    fi
    record "\"part\":\"$part\",\"device\":\"$device\",$fields$(outcome),\"report\":${report:-null}"
    say "bench $part on $device${fields:+, $what}: ${why:-$seconds s}"
}

check_kernels() {
    local device dtype what compare
    for device in "${devices[@]}"; do
        for dtype in $(variants "$device"); do
            what=$dtype compare=()
            # On CUDA, burn's stock ops need a file of the toolkit, which may not be installed.
            [[ $device != cuda* ]] || compare=(--no-compare)
            bench kernels 400 "\"dtype\":\"$dtype\"," "--dtype=$dtype" "${compare[@]}"
        done
    done
}

check_steps() {
    local device dtype refused what step=(--preset=gpt2)
    ((quick)) && step=(--preset=shakespeare-char --vocab_size=65 "${tiny[@]}")
    for device in "${devices[@]}"; do
        for dtype in $(variants "$device"); do
            if refused=$(dtype_refused "$device" "$dtype"); then
                say "bench steps on $device in $dtype: $refused"
                record "\"part\":\"steps\",\"device\":\"$device\",\"dtype\":\"$dtype\",$(
                )\"batch\":null,\"compare\":false,\"error\":$(json_string "$refused"),$(
                )\"report\":null"
            else
                bench_steps
            fi
        done
        [[ $device != cuda* ]] || continue
        what='micro-batch 1 next to stock ops'
        bench steps 200 '"dtype":"float32","batch":1,"compare":true,' "${step[@]}" --batch_size=1 \
            --dtype=float32
        what='work of 10 ms at a time'
        bench steps 150 '"dtype":"float32","batch":1,"compare":false,"gentle":true,' --no-compare \
            "${step[@]}" --batch_size=1 --dtype=float32 --gentle=true
    done
}

# Measures the steps of $device in $dtype, one micro-batch after the other.
bench_steps() {
    local batch predicted taken why
    # Each runs in its own process, so that running out of memory ends only that one.
    for batch in ${batches//,/ }; do
        local fields="\"dtype\":\"$dtype\",\"batch\":$batch,\"compare\":false"
        local model=("${step[@]}" "--batch_size=$batch")
        model+=("--dtype=$dtype")
        timeout 20 "$wgpt" plan --device="$device" --json "${model[@]}" </dev/null \
            >"$scratch/plan" 2>"$scratch/plan.said"
        predicted=$(grep -E '^\{.*\}$' "$scratch/plan" | tail -n 1)
        taken=$(number micro_batch <<<"$predicted")
        why=
        # `bench` does not plan, but a run would split the step further.
        if [[ $predicted == *'"fits":false'* || -z $predicted ]]; then
            why="the plan refuses it$(sed -n 's/^error: /: /p' "$scratch/plan.said" | head -n 1)"
        elif ((taken < batch)); then
            why="the plan reduces it to $taken"
        fi
        if [[ -n $why ]]; then
            say "bench steps on $device, $dtype, micro-batch $batch: skipped, $why"
            record "\"part\":\"steps\",\"device\":\"$device\",$fields,\"plan\":${predicted:-null},$(
            )\"error\":$(json_string "$why"),\"report\":null"
            continue
        fi
        what="$dtype, micro-batch $batch"
        bench steps 150 "$fields,\"plan\":$predicted," --no-compare --profile "${model[@]}"
    done
}

check_torch() {
    local limit line rows=0 sizes=(--batches "$batches")
    ((quick)) && sizes+=(--layers 2 --width 64 --block 64 --steps 3)
    if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        say 'torch: no PyTorch with CUDA here'
        record '"part":"torch","error":"no PyTorch with CUDA"'
        return
    fi
    if ! limit=$(allowed 1500); then
        say 'torch: no time left'
        record '"part":"torch","error":"no time left"'
        return
    fi
    # Reads line by line, to keep the measurements from before the limit.
    exec {rows_of_torch}< <(exec timeout -k 5 "$limit" python3 "$root/scripts/torch_gpt2.py" \
        "${sizes[@]}" 2>>"$out/log.txt")
    child=$!
    while IFS= read -r line <&"$rows_of_torch"; do
        echo "$line" >>"$out/log.txt"
        # Python may warn on stdout.
        if [[ $line == '{'*'}' ]]; then
            record "\"part\":\"torch\",\"row\":$line"
            rows=$((rows + 1))
        fi
    done
    exec {rows_of_torch}<&-
    wait "$child"
    code=$?
    child=
    ((code == 0)) || record "\"part\":\"torch\",\"error\":\"ended early, exit code $code\""
    say "torch: $rows rows, exit code $code"
}

tables() {
    if command -v python3 >/dev/null; then
        python3 "$root/scripts/gpu_tables.py" "$@"
    else
        # The file has everything that the tables are made from.
        {
            printf '# GPU check\n\nThere was no Python to make tables.\n\n```text\n'
            cat "$1/summary.txt"
            printf '```\n\n## Records\n\n```json\n'
            cat "$1/gpu-check.json"
            printf '```\n'
        } >"$1/gpu-check.md"
    fi
}

# has NAME: succeeds if wgpt found a device of that name or backend.
has() {
    [[ $found == *"\"id\":\"$1"[:\"]* ]]
}

# Records the versions and devices of this run.
record_call() {
    local gpu=
    if command -v nvidia-smi >/dev/null; then
        gpu=$(nvidia-smi --format=csv,noheader \
            --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit 2>/dev/null)
    fi
    record "\"part\":\"call\",\"date\":$(json_string "$date"),\"wgpt\":$(
        json_string "$("$wgpt" --version 2>/dev/null)"
    ),\"device\":$(json_string "${devices[*]}"),\"parts\":$(json_string "$parts"),\"quick\":$(
        ((quick)) && echo true || echo false
    ),\"system\":$(
        json_string "$(uname -srm), $(getconf _NPROCESSORS_ONLN) CPUs"
    ),\"nvidia_smi\":$(json_string "$gpu"),\"torch\":$(
        json_string "$(python3 -c 'import torch; print(torch.__version__)' 2>/dev/null)"
    ),\"devices\":${found:-null}"
}

# --- the command line -----------------------------------------------------------------------------

scratch=$(mktemp -d) || fail 'no temporary folder'
child='' linked='' made=()
finish() {
    [[ -z $child ]] || kill "$child" 2>/dev/null
    unlink_data
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mode=check folder='' out=out/gpu-check device='' parts=''
dtypes=float32,tf32,bfloat16,float16 batches='' within=0 date='' quick=0 failed=0 rest=()
seconds=60 by_default=0
while (($#)); do
    case $1 in
    --pack | --tables) mode=${1#--} ;;
    --quick) quick=1 ;;
    --parts=* | --device=* | --dtypes=* | --out=* | --batches=* | --seconds=* | --within=* | --date=*)
        option=${1%%=*}
        printf -v "${option#--}" '%s' "${1#*=}"
        ;;
    --parts | --device | --dtypes | --out | --batches | --seconds | --within | --date)
        (($# > 1)) || fail "$1 needs a value"
        printf -v "${1#--}" '%s' "$2"
        shift
        ;;
    -h | --help)
        sed -n '2,/^# Not/s/^# \{0,1\}//p' "$0" | sed '$d'
        exit
        ;;
    -*) fail "unknown option $1" ;;
    *) rest+=("$1") ;;
    esac
    shift
done

case $mode in
tables)
    ((${#rest[@]} > 0)) || fail '--tables needs a folder'
    command -v python3 >/dev/null || fail '--tables needs Python 3'
    tables "${rest[@]}"
    exit
    ;;
pack)
    ((${#rest[@]} == 1 || ${#rest[@]} == 2)) || fail '--pack takes a file and at most one folder'
    ((${#rest[@]} == 1)) || folder=$(absolute "${rest[1]}")
    pack "${rest[0]}"
    exit
    ;;
esac

if [[ -z $parts ]]; then
    parts=facts,selftest,train,bench,tests,torch by_default=1
fi
parts=${parts//bench/kernels,steps}
for part in ${parts//,/ }; do
    case $part in
    facts | selftest | train | kernels | steps | tests | torch) ;;
    *) fail "unknown part $part" ;;
    esac
done
[[ $within =~ ^[0-9]+$ ]] || fail '--within takes seconds'
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail '--seconds takes seconds'
train_seconds=$seconds
if [[ -z $batches ]]; then
    batches=4,8,16,32,64
    ((quick)) && batches=1,2
fi
[[ $batches =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || fail '--batches takes numbers and commas'
: "${date:=$(date -u +%Y-%m-%dT%H:%M:%SZ)}"
for dtype in ${dtypes//,/ }; do
    case $dtype in
    float32 | tf32 | bfloat16 | float16) ;;
    *) fail "unknown dtype $dtype" ;;
    esac
done
tiny=(--n_layer=2 --n_head=2 --n_embd=64 --block_size=64 --dropout=0)
command -v timeout >/dev/null || fail 'timeout (coreutils) is not installed'

((${#rest[@]} < 2)) || fail 'one folder at most'
if ((${#rest[@]} == 1)); then
    folder=$(absolute "${rest[0]}")
elif [[ -x $root/bin/wgpt ]]; then
    folder=$root/bin
else
    folder=${CARGO_TARGET_DIR:-$root/target}/release
    folder=$(absolute "$folder")
    if [[ ! -x $folder/wgpt ]] && installed=$(command -v wgpt); then
        folder=$(dirname "$installed")
    fi
fi
wgpt=$folder/wgpt
[[ -x $wgpt ]] || fail "no wgpt in $folder"
# Adds only missing libraries, because a graphics driver may need the machine's own.
mkdir "$scratch/lib"
for library in $(ldd "$wgpt" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p'); do
    [[ -f $root/lib/$library ]] || fail "wgpt needs $library, which is neither installed nor packed"
    cp "$root/lib/$library" "$scratch/lib/"
    export LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
out=$(absolute "$out")
mkdir -p "$out" || fail "cannot write to $out"

# wgpt reads settings from these variables, and the results must not depend on the caller's.
for variable in "${!WGPT_@}"; do
    unset "$variable"
done

found=$(timeout 60 "$wgpt" devices --json 2>"$scratch/stderr" | grep -E '^\[.*\]$')
no_cuda=
if ! has cuda; then
    no_cuda=$(sed -n 's/^note: no cuda device: //p' "$scratch/stderr")
    : "${no_cuda:=this build has no CUDA}"
fi
if [[ -z $device ]]; then
    device=vulkan:0
    has cuda:0 && device+=,cuda:0
fi
IFS=, read -r -a devices <<<"$device"
for device in "${devices[@]}"; do
    has "$device" || fail "no device $device${no_cuda:+; CUDA: $no_cuda}"
done

# The records of earlier calls, one per line.
: >"$scratch/records"
if [[ -f $out/gpu-check.json ]]; then
    sed -n 's/^\({.*}\),\{0,1\}$/\1/p' "$out/gpu-check.json" >"$scratch/records"
fi

record_call
[[ -z $no_cuda ]] || say "CUDA is skipped: $no_cuda"
# The order is fixed: correctness comes first, and what every volunteer can run.
for part in facts selftest train kernels steps tests torch; do
    if [[ ,$parts, == *,$part,* ]]; then
        "check_$part"
    fi
done
tables "$out"
echo "the file to send: $out/gpu-check.md"
exit "$failed"
