#!/bin/sh
# Installs rullama-train @VERSION@ into ~/.local/bin, or into RULLAMA_INSTALL_DIR:
#   curl -fsSL https://github.com/rullama/rullama-train/releases/latest/download/install.sh | sh
# RULLAMA_DOWNLOADS names a mirror of the release's files.
set -eu

main() {
    version=@VERSION@
    from=${RULLAMA_DOWNLOADS:-https://github.com/rullama/rullama-train/releases/download/v$version}
    into=${RULLAMA_INSTALL_DIR:-${HOME:?HOME is not set; set RULLAMA_INSTALL_DIR}/.local/bin}
    case "$(uname -s) $(uname -m)" in
    "Linux x86_64" | "Linux amd64") target=x86_64-unknown-linux-gnu ;;
    "Linux aarch64" | "Linux arm64") target=aarch64-unknown-linux-gnu ;;
    "Darwin x86_64") target=x86_64-apple-darwin ;;
    "Darwin arm64") target=aarch64-apple-darwin ;;
    *) fail "there is no build for $(uname -s) on $(uname -m); build from source: cargo install --locked rullama-train-cli" ;;
    esac
    # Apple's translation of x86-64 programs hides the processor.
    if [ "$target" = x86_64-apple-darwin ] && [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || true)" = 1 ]; then
        target=aarch64-apple-darwin
    fi
    case $target in
    *linux-gnu)
        if is_musl; then
            target=${target%gnu}musl
        fi
        ;;
    esac
    case $target in
    x86_64-unknown-linux-gnu) sum=@SHA256:x86_64-unknown-linux-gnu@ ;;
    aarch64-unknown-linux-gnu) sum=@SHA256:aarch64-unknown-linux-gnu@ ;;
    x86_64-unknown-linux-musl) sum=@SHA256:x86_64-unknown-linux-musl@ ;;
    aarch64-unknown-linux-musl) sum=@SHA256:aarch64-unknown-linux-musl@ ;;
    x86_64-apple-darwin) sum=@SHA256:x86_64-apple-darwin@ ;;
    aarch64-apple-darwin) sum=@SHA256:aarch64-apple-darwin@ ;;
    esac
    folder=rullama-train-v$version-$target
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch "$from/$folder.tar.gz" "$work/archive" || fail "cannot download $from/$folder.tar.gz; check the network"
    found=$(digest "$work/archive")
    [ "$found" = "$sum" ] || fail "$folder.tar.gz has the SHA-256 $found, expected $sum; download it again"
    tar -xzf "$work/archive" -C "$work"
    mkdir -p "$into"
    # Moved, so that a program that runs is not overwritten.
    new=$into/.rullama-train.new
    cp "$work/$folder/rullama-train" "$new"
    chmod 755 "$new"
    if ! said=$("$new" --version 2>&1); then
        rm -f "$new"
        fail "the program does not start here ($said); on Linux it needs glibc 2.28 or musl 1.2; otherwise build from source: cargo install --locked rullama-train-cli"
    fi
    mv -f "$new" "$into/rullama-train"
    echo "installed $said in $into"
    case ":$PATH:" in
    *":$into:"*) ;;
    *) echo "add it to your PATH: export PATH=\"$into:\$PATH\"" ;;
    esac
}

# Alpine may have a loader for programs of glibc too, and Debian one for those of musl.
is_musl() {
    case "$(ldd --version 2>&1)" in
    *musl*) return 0 ;;
    *GLIBC* | *"GNU libc"* | *glibc*) return 1 ;;
    esac
    ls /lib/ld-musl-* >/dev/null 2>&1 && ! ls /lib*/ld-linux-* >/dev/null 2>&1
}

fetch() {
    if command -v curl >/dev/null; then
        curl -fsSL --retry 3 -o "$2" "$1"
    elif command -v wget >/dev/null; then
        wget -q -O "$2" "$1"
    else
        fail "neither curl nor wget is installed; install one of them"
    fi
}

digest() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1"
    else
        shasum -a 256 "$1"
    fi | cut -d ' ' -f 1
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

# Nothing runs before the whole script has arrived.
main
