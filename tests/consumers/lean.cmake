# Included by llama.cpp's project(): llama-cpp-python forces the common library of the tools on, which takes most of the build
# time and is not used here.
set(LLAMA_BUILD_COMMON OFF)
