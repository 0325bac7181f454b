// Compiles the HLSL files of a list with DXC, as wgpu's DX12 backend calls it, and prints a line of a table for each.
//   g++ -O1 -std=c++17 -I HEADERS dxc.cpp -o dxc -ldl && ./dxc libdxcompiler.so.3.7 FOLDER [PROFILE]
// HEADERS has dxcapi.h and WinAdapter.h of DirectXShaderCompiler; FOLDER is that of `compile-kernels hlsl`.
#include "dxcapi.h"
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

static std::wstring wide(const std::string &s) { return std::wstring(s.begin(), s.end()); }

int main(int count, char **args) {
    if (count < 3) return 2;
    void *library = dlopen(args[1], RTLD_NOW);
    if (!library) { std::cerr << dlerror() << "\n"; return 2; }
    auto create = (DxcCreateInstanceProc)dlsym(library, "DxcCreateInstance");
    IDxcUtils *utils = nullptr;
    IDxcCompiler3 *compiler = nullptr;
    create(CLSID_DxcUtils, __uuidof(IDxcUtils), (void **)&utils);
    create(CLSID_DxcCompiler, __uuidof(IDxcCompiler3), (void **)&compiler);
    if (!utils || !compiler) return 2;
    std::string folder = args[2], line;
    std::wstring profile = wide(count > 3 ? args[3] : "cs_6_6");
    std::ifstream list(folder + "/list.tsv");
    int failed = 0;
    while (std::getline(list, line)) {
        std::stringstream fields(line);
        std::string number, entry, name, tier;
        std::getline(fields, number, '\t'); std::getline(fields, entry, '\t');
        std::getline(fields, name, '\t'); std::getline(fields, tier, '\t');
        std::ifstream file(folder + "/" + number + ".hlsl");
        if (!file) continue;
        std::stringstream text; text << file.rdbuf();
        std::string source = text.str();
        DxcBuffer buffer = {source.data(), source.size(), CP_UTF8};
        std::wstring wide_entry = wide(entry);
        std::vector<LPCWSTR> arguments = {L"-E", wide_entry.c_str(), L"-T", profile.c_str(), L"-HV", L"2018", L"-no-warnings", L"-Ges", L"-Vd"};
        if (profile >= L"cs_6_2") arguments.push_back(L"-enable-16bit-types");
        auto start = std::chrono::steady_clock::now();
        IDxcResult *result = nullptr;
        HRESULT status = compiler->Compile(&buffer, arguments.data(), (UINT32)arguments.size(), nullptr, __uuidof(IDxcResult), (void **)&result);
        if (status == S_OK) result->GetStatus(&status);
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        std::string verdict = "ok";
        size_t bytes = 0;
        if (status != S_OK) {
            verdict = "FAILED";
            IDxcBlobUtf8 *errors = nullptr;
            if (result) result->GetOutput(DXC_OUT_ERRORS, __uuidof(IDxcBlobUtf8), (void **)&errors, nullptr);
            if (errors) { std::string e = errors->GetStringPointer(); for (char &c : e) if (c == '\n' || c == '\t') c = ' '; verdict += " " + e.substr(0, 300); }
            failed++;
        } else {
            IDxcBlob *code = nullptr;
            result->GetOutput(DXC_OUT_OBJECT, __uuidof(IDxcBlob), (void **)&code, nullptr);
            if (code) { bytes = code->GetBufferSize(); code->Release(); }
        }
        if (result) result->Release();
        printf("%s\t%s\t%s\tseconds=%.3f\tbytes=%zu\n", name.c_str(), tier.c_str(), verdict.c_str(), seconds, bytes);
        fflush(stdout);
    }
    return failed > 0;
}
