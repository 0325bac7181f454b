# Included by llama.cpp's project(): llama-cpp-python forces the tools' common library on, which takes most of the time and
# which nothing here uses.
set(LLAMA_BUILD_COMMON OFF)
