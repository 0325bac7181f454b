#!/usr/bin/env python3
"""Checks types, names and address spaces of naga's Metal text with clang, which has no Metal: as C++ for OpenCL, whose address spaces and
vectors are alike, over declarations of what the kernels call. Apple's compiler may still refuse what passes here; what fails here is wrong.

msl_check.py FOLDER [CLANG]     FOLDER is that of `compile-kernels msl`; CLANG is a command
"""
import concurrent.futures
import pathlib
import re
import shlex
import subprocess
import sys

HEADER = r"""
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define kernel
#define constant __constant
#define device __global
#define threadgroup __local
#define thread __private
template <class T, class U> T as_type(U);
template <class T, class... A> T mk(A...);
struct float4x4 { float4 columns[4]; float4x4(); float4x4(float4, float4, float4, float4); float4 &operator[](int); float4 operator[](int) const; };
namespace metal {
using uint = ::uint;
using float2 = ::float2; using float3 = ::float3; using float4 = ::float4; using half2 = ::half2; using half3 = ::half3; using half4 = ::half4;
using int2 = ::int2; using int3 = ::int3; using int4 = ::int4; using uint2 = ::uint2; using uint3 = ::uint3; using uint4 = ::uint4;
using bool2 = ::int2; using bool3 = ::int3; using bool4 = ::int4; using float4x4 = ::float4x4;
struct mem_flags { enum type { mem_none, mem_device, mem_threadgroup }; };
void threadgroup_barrier(mem_flags::type); void simdgroup_barrier(mem_flags::type);
struct atomic_word { uint value; };
uint atomic_fetch_add_explicit(__global atomic_word *, uint, int); uint atomic_load_explicit(const __global atomic_word *, int);
void atomic_store_explicit(__global atomic_word *, uint, int);
uint atomic_load_explicit(const __local atomic_word *, int); void atomic_store_explicit(__local atomic_word *, uint, int);
uint atomic_fetch_add_explicit(__local atomic_word *, uint, int);
template <class T> T exp(T); template <class T> T log(T); template <class T> T tanh(T); template <class T> T sqrt(T); template <class T> T rsqrt(T);
template <class T> T abs(T); template <class T> T rint(T); template <class T> T floor(T); template <class T> T simd_max(T); template <class T> T pow(T, T);
template <class T> T popcount(T); template <class T> T simd_broadcast(T, uint); template <class T> T min(T, T); template <class T> T max(T, T); template <class T> T fma(T, T, T);
template <class T> T clamp(T, T, T); template <class T, class B> T select(T, T, B); template <class T> bool any(T); template <class T> bool all(T);
float2 clamp(float2, float, float); float3 clamp(float3, float, float); float4 clamp(float4, float, float);
float dot(float2, float2); float dot(float3, float3); float dot(float4, float4);
float4x4 transpose(float4x4);
template <class T, int C, int R> struct simdgroup_matrix { T value; };
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>; using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
template <class T> void simdgroup_load(simdgroup_matrix<T, 8, 8> &, const __global T *, ulong = 8, ulong2 = 0, bool = false);
template <class T> void simdgroup_load(simdgroup_matrix<T, 8, 8> &, const __local T *, ulong = 8, ulong2 = 0, bool = false);
template <class T> void simdgroup_store(simdgroup_matrix<T, 8, 8>, __global T *, ulong = 8, ulong2 = 0, bool = false);
template <class T> void simdgroup_store(simdgroup_matrix<T, 8, 8>, __local T *, ulong = 8, ulong2 = 0, bool = false);
template <class D, class A, class B, class C> void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &, simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
}
#define local local_word
#define global global_word
#define private private_word
float4x4 operator*(float4x4, float); float4 operator*(float4x4, float4);
"""

# Failures that are printed.
MOST = 8


def check(job):
    number, name, folder, clang = job
    text = (folder / f"{number}.msl").read_text()
    text = re.sub(r"#include <.*>", "", text)
    text = re.sub(r"\[\[.*?\]\]", "", text)
    # Words that OpenCL has, too.
    text = text.replace("static_cast<", "mk<").replace("metal::atomic_uint", "metal::atomic_word").replace("metal::memory_order_relaxed", "0")
    text = re.sub(r"\b(?:metal::)?((?:float|half|int|uint|bool)[234])\(", lambda m: f"mk<metal::{m[1]}>(", text)
    command = [*clang, "-cc1", "-triple", "spir64", "-x", "clcpp", "-cl-std=CLC++2021", "-fdeclare-opencl-builtins", "-finclude-default-header",
               "-cl-single-precision-constant", "-fsyntax-only", "-Wno-everything", "-ferror-limit", "3", "-"]
    run = subprocess.run(command, input=HEADER + "#line 1\n" + text, capture_output=True, text=True)
    errors = [line.split(": ", 1)[-1] for line in run.stderr.splitlines() if "error:" in line]
    return name, errors if run.returncode else []


def main():
    folder, clang = pathlib.Path(sys.argv[1]), shlex.split(sys.argv[2] if len(sys.argv) > 2 else "clang")
    jobs = []
    for line in (folder / "list.tsv").read_text().splitlines():
        number, _, name, tier, verdict, *_ = line.split("\t")
        # Metal has no matrices of 16×16, on which the kernels of bytes depend, and no GPU of Apple is a software renderer.
        if verdict == "ok" and tier not in ("coop16", "packed", "software") and not {"BYTES=1", "INTEGERS=1"} & set(name.split()):
            jobs.append((number, name, folder, clang))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, errors in pool.map(check, jobs):
            if errors:
                failed += 1
            # A missing declaration fails hundreds.
            if errors and failed <= MOST:
                print(f"{name}: {errors[0][:200]}")
    print(f"{len(jobs)} checked, {failed} failed")
    sys.exit(failed > 0)


main()
