# The shared part of the demos, which source it: the command that is shown, root, colours, and how steps are told.

TOMBOLO=${TOMBOLO:-$(readlink -m "$(dirname "${BASH_SOURCE[0]}")/../target/release/tombolo")}

# Ends the demo with a reason.
fail() {
    echo "demo: $1" >&2
    exit 1
}

# Goes on as root, with the demo's arguments. The variables whose names are in `keep` go along.
want_root() {
    local keep=$1
    shift
    [ -x "$TOMBOLO" ] || fail "there is no $TOMBOLO; run 'make build' first"
    if [ "$(id -u)" != 0 ]; then
        echo "Namespaces, mounts and control groups want root: going on through sudo."
        exec sudo --preserve-env="$keep" TOMBOLO="$TOMBOLO" "$0" "$@"
    fi
}

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' blue=$'\e[36m' plain=$'\e[0m'
else
    bold='' blue='' plain=''
fi

# Says what comes and what to notice.
say() {
    printf '\n%s%s%s\n' "$bold" "$1" "$plain"
    shift
    [ $# = 0 ] || printf '%s\n' "$@"
}

# Prints a command line as a shell shows it.
print_command() {
    printf '\n%s%s%s\n' "$blue" "$1" "$plain"
}

# Prints a command and runs it.
show() {
    print_command "$ $1"
    eval "$1"
}

# As `show`, for a command that has to fail.
show_failing() {
    print_command "$ $1"
    if eval "$1"; then fail 'that should have failed'; fi
}

# Where the demo fails, the end of a daemon's log says more.
tell_failure() {
    printf '\ndemo: it failed (%s); the end of the daemon'\''s log:\n' "$1" >&2
    tail -n 20 "$2" >&2 2>/dev/null || true
}

# The pid of the daemon that has a state directory, if one runs.
daemon_of() {
    local pid
    pid=$(cat "$1/lock" 2>/dev/null) || return 0
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = tombolo ] && echo "$pid" || true
}

# Ends the daemon that has a state directory, and waits until it has ended.
end_daemon() {
    local pid
    pid=$(daemon_of "$1")
    [ -n "$pid" ] || return 0
    kill "$pid" 2>/dev/null || true
    # Its output is another one: tail ends early where nobody reads it any more.
    tail --pid="$pid" -f /dev/null >/dev/null
}
