"""Makes a CUDA build of torch importable without the CUDA libraries, for use on the CPU.

The usual wheel needs some gigabytes of further wheels just to be imported. This script adds a small stub for each missing library
next to torch's libraries, with every function and symbol version that torch needs. The functions return an error, so that
`torch.cuda.is_available()` is False. Needs readelf, nm and a C compiler. Does nothing if no library is missing.
"""
import glob
import os
import re
import subprocess
import sysconfig
import tempfile
from collections import defaultdict

LIB = os.path.join(sysconfig.get_paths()["purelib"], "torch", "lib")
# Names of CUDA's libraries, and the library of functions that are needed without a version.
CUDA = re.compile(r"lib(cu|nv|nccl)")
HOME = [("libcudnn", "cudnn"), ("libnccl", "nccl"), ("libnvshmem_host", "nvshmem"), ("libnvrtc", "nvrtc"),
        ("libcufile", "cuFile"), ("libcusparseLt", "cusparseLt"), ("libcupti", "cupti"), ("libcusparse.", "cusparse"),
        ("libcublasLt", "cublasLt"), ("libcublas.", "cublas"), ("libcufft", "cufft"), ("libcusolver", "cusolver"),
        ("libcudart", ".")]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def wanted(path):
    """-> names of CUDA's libraries that a library needs, {(library, version): functions}, functions without a version"""
    libraries = {m[1] for m in re.finditer(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", path)) if CUDA.match(m[1])}
    versions, library = {}, None
    for line in run("readelf", "-V", "-W", path).splitlines():
        if m := re.search(r"File: (\S+)", line):
            library = m[1]
        if (m := re.search(r"Name: (\S+)\s+Flags", line)) and library and CUDA.match(library):
            versions[m[1]] = library
    versioned, plain, defined = defaultdict(set), set(), set()
    for fields in map(str.split, run("nm", "-D", path).splitlines()):
        if len(fields) == 2 and fields[0] in "Uw":
            name, _, version = fields[1].partition("@")
            if version in versions:
                versioned[versions[version], version].add(name)
            elif not version and fields[0] == "U":
                plain.add(name)
        elif len(fields) == 3:
            defined.add(fields[2].partition("@")[0])
    return libraries, versioned, plain, defined


def write(library, versions):
    """Builds a library whose functions all return "no CUDA device"."""
    names = sorted(set().union(*versions.values()))
    text = re.compile(r"(Error(String|Name)|ResultString)$")
    body = [f'const char *{n}(void) {{ return "no CUDA here"; }}' if text.search(n) and "Last" not in n
            else f"long {n}(void) {{ return 35; }}" for n in names]
    with tempfile.TemporaryDirectory() as folder:
        source, script = os.path.join(folder, "stub.c"), os.path.join(folder, "versions")
        open(source, "w").write("\n".join(body) + "\n")
        open(script, "w").writelines(f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in versions.items() if v)
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", os.path.join(LIB, library), source,
                   f"-Wl,-soname,{library}"]
        subprocess.run(command + [f"-Wl,--version-script={script}"] * any(versions), check=True)
    print(f"{library}: {len(names)} functions")


def main():
    paths = glob.glob(LIB + "/*.so*")
    there = {os.path.basename(path) for path in paths}
    needed, functions, plain, defined = set(), defaultdict(set), set(), set()
    for path in paths:
        libraries, versioned, without, own = wanted(path)
        needed |= libraries
        plain |= without
        defined |= own
        for key, names in versioned.items():
            functions[key] |= names
    needed = {name for name in needed if name not in there and name != "libcuda.so.1"}
    for name in plain - defined:
        if re.match(r"(cu|nv|nccl|__cuda|__fatbin)", name):
            start = next(start for start, pattern in HOME if re.match(pattern, name))
            for library in (library for library in needed if library.startswith(start)):
                functions[library, ""].add(name)
    for library in sorted(needed):
        write(library, {version: names for (of, version), names in functions.items() if of == library})


if __name__ == "__main__":
    main()
