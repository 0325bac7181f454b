# Short names for what CONTRIBUTING.md describes. `just` alone lists them.

_default:
    @just --list --unsorted

# Install what a build needs beside Rust
setup:
    ./setup

# Run tests: all of them, one file of tests, or those of a file whose name contains a word: `just test ops attention`
test file="" name="":
    cargo test --release {{ if file == "" { "" } else { "--test " + file } }} -- {{ name }}

# Check that every shader is valid WGSL within WebGPU's limits; needs no GPU
shaders:
    cargo test --release --test shaders

# Check the kernels whose group contains a word against the f64 reference, then time them: `just kernel attention`
kernel name="":
    cargo bench --bench kernels -- {{ name }}

# Time training steps on random weights: `just bench e2b --sequence 2048 --memory-limit 8`
bench base="tiny" *options="":
    cargo run --release -- bench {{ base }} {{ options }}

# Format the code
fmt:
    cargo fmt --all

# Run the linters: formatting, clippy, rustdoc, spelling, licences
lint:
    cargo fmt --all --check
    cargo clippy --release --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps
    typos
    cargo deny check

# Run everything that must pass before a change goes in
ci:
    .ci/run

# Rewrite the generated parts of docs/
docs:
    RULLAMA_WRITE_DOCS=1 cargo test --release --test docs

# Draw the pictures in docs/images again: the report of runs/chat, and the chart of speed. Needs Chromium and pngquant
pictures:
    python3 docs/images/speed.py
    chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,945 --screenshot=target/report.png "file://{{ justfile_directory() }}/runs/chat/report.html"
    pngquant --force --output docs/images/report.png 64 target/report.png

# Build the page that trains in the browser, and serve it
web:
    web/build
    cargo run --release --features web -- web

# Test the page in Chromium; `just web-test quick` skips whole runs
web-test *options="":
    web/test {{ options }}

# Load every export in llama.cpp and PEFT and compare
consumers:
    tests/consumers/run

# Compare a real model with PyTorch, which this installs in the build folder
real *options="":
    tests/real/run {{ options }}
