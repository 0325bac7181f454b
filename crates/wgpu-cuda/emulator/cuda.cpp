// A driver that runs PTX on the CPU: that of naga-ptx, and that of nvcc for compute capability 8.0, so that both are checked without a GPU.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include <memory>
#include <algorithm>
#include <sstream>
#include <functional>
using namespace std;
typedef uint32_t u32; typedef int32_t s32; typedef uint64_t u64; typedef int64_t s64; typedef uint16_t u16;
enum K : uint8_t { R, H, P, D, IMM, ADDR, SPEC, NONE };
struct Opd { K k = NONE; u32 i = 0; u64 imm = 0; s64 off = 0; K base = NONE; };
enum Op { MOV, MOVPRED, UNPACK, PACK, BRA, RET, LD, ST, LDP, SETP, SELP, SELPH, A1, A2, A3, CVTA, BARSYNC, NOP, SHFL, MMA, MOVM, LDM, BARWARP, VOTE, ATOM, MADW, ATOMCAS, A64, CPASYNC, COMMIT, WAITGROUP, REDUX, BFI };
typedef u32 (*F)(u32, u32, u32);
typedef u64 (*F64)(u64, u64);
struct Ins { Op op; int g = -1; bool neg = false; vector<Opd> o; int w = 1, bytes = 4; int space = 0; int target = 0; F f = nullptr; F64 f64 = nullptr; K out = R; K in = R; int cmp = 0, ty = 0; int band = 0; bool trans = false; int mode = 0; string text; int sgn = 0; };
struct Param { int off, size; };
static const u64 DYNAMIC = 0x5ead0000; // stands for where dynamic shared memory begins, behind the other, until that is known
struct Kernel { string label; bool named = false; long skipped = 0; vector<Ins> code; int n[4] = {0, 0, 0, 0}; vector<Param> params; int psize = 0, shared = 0, local = 0; };
static inline float fl(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static inline u32 bi(float f) { u32 x; memcpy(&x, &f, 4); return x; }
static inline float hf(u32 h) { u16 s = h; _Float16 x; memcpy(&x, &s, 2); return (float)x; }
static inline u32 fh(float f) { _Float16 x = (_Float16)f; u16 s; memcpy(&s, &x, 2); return s; }
static inline float ftz(float f) { return fabsf(f) < 1.17549435e-38f ? copysignf(0, f) : f; }
#define PAIR(e) [](u32 a, u32 b, u32 c) -> u32 { auto f = [](u32 a, u32 b, u32 c) -> u32 { return e; }; return f(a & 65535, b & 65535, c & 65535) | f(a >> 16, b >> 16, c >> 16) << 16; }
#define E1(e) [](u32 a, u32 b, u32 c) -> u32 { (void)a; (void)b; (void)c; return e; }
static map<string, F> table() {
    map<string, F> t;
    t["mul.f32"] = E1(bi(fl(a) * fl(b))); t["add.f32"] = E1(bi(fl(a) + fl(b))); t["sub.f32"] = E1(bi(fl(a) - fl(b)));
    t["fma.rn.f32"] = E1(bi(fmaf(fl(a), fl(b), fl(c)))); t["div.full.f32"] = E1(bi(fl(a) / fl(b)));
    t["add.u32"] = t["add.s32"] = E1(a + b); t["sub.u32"] = t["sub.s32"] = E1(a - b); t["mul.lo.u32"] = t["mul.lo.s32"] = E1(a * b); t["mul.hi.u32"] = E1((u64)(u32)a * (u32)b >> 32);
    t["mad.lo.u32"] = t["mad.lo.s32"] = E1(a * b + c); t["and.b32"] = E1(a & b); t["or.b32"] = E1(a | b); t["xor.b32"] = E1(a ^ b); t["not.b32"] = E1(~a);
    t["div.u32"] = E1(b ? a / b : ~0u); t["rem.u32"] = E1(b ? a % b : a); t["div.s32"] = E1(b ? (u32)((s32)a / (s32)b) : ~0u); t["rem.s32"] = E1(b ? (u32)((s32)a % (s32)b) : a);
    t["shr.u32"] = E1(b > 31 ? 0 : a >> b); t["shl.b32"] = E1(b > 31 ? 0 : a << b); t["shr.s32"] = E1((u32)((s32)a >> (b > 31 ? 31 : b)));
    t["min.u32"] = E1(a < b ? a : b); t["max.u32"] = E1(a > b ? a : b); t["min.s32"] = E1((s32)a < (s32)b ? a : b); t["max.s32"] = E1((s32)a > (s32)b ? a : b);
    t["min.f32"] = E1(bi(fminf(fl(a), fl(b)))); t["max.f32"] = E1(bi(fmaxf(fl(a), fl(b)))); t["abs.f32"] = E1(a & 0x7fffffff); t["neg.f32"] = E1(a ^ 0x80000000); t["neg.s32"] = E1(0u - a); t["abs.s32"] = E1((u32)abs((s32)a));
    t["bfe.u32"] = E1(c >= 32 ? a >> b : (a >> b) & ((1u << c) - 1)); t["bfe.s32"] = E1((u32)((s32)(a << (32 - b - c)) >> (32 - c)));
    t["ex2.approx.ftz.f32"] = E1(bi(ftz(exp2f(ftz(fl(a)))))); t["lg2.approx.ftz.f32"] = E1(bi(log2f(ftz(fl(a))))); t["rcp.approx.ftz.f32"] = E1(bi(ftz(1.0f / ftz(fl(a)))));
    t["sqrt.approx.ftz.f32"] = E1(bi(sqrtf(ftz(fl(a))))); t["rsqrt.approx.ftz.f32"] = E1(bi(1.0f / sqrtf(ftz(fl(a))))); t["sin.approx.ftz.f32"] = E1(bi(sinf(fl(a)))); t["cos.approx.ftz.f32"] = E1(bi(cosf(fl(a))));
    t["copysign.f32"] = E1((a & 0x80000000) | (b & 0x7fffffff)); t["cvt.rn.f32.u32"] = E1(bi((float)a)); t["cvt.rn.f32.s32"] = E1(bi((float)(s32)a));
    t["cvt.rzi.s32.f32"] = E1(fl(a) != fl(a) ? 0 : fl(a) >= 2147483648.f ? 0x7fffffffu : fl(a) <= -2147483648.f ? 0x80000000u : (u32)(s32)fl(a));
    t["cvt.rzi.u32.f32"] = E1(!(fl(a) > 0) ? 0 : fl(a) >= 4294967296.f ? ~0u : (u32)fl(a));
    t["cvt.rni.f32.f32"] = E1(bi(rintf(fl(a)))); t["cvt.rmi.f32.f32"] = E1(bi(floorf(fl(a)))); t["cvt.rpi.f32.f32"] = E1(bi(ceilf(fl(a)))); t["cvt.rzi.f32.f32"] = E1(bi(truncf(fl(a))));
    t["cvt.f32.f16"] = E1(bi(hf(a))); t["cvt.rn.f16.f32"] = E1(fh(fl(a))); t["cvt.rn.f16x2.f32"] = E1(fh(fl(b)) | fh(fl(a)) << 16);
    t["mul.f16x2"] = t["mul.rn.f16x2"] = PAIR(fh(hf(a) * hf(b))); t["add.f16x2"] = PAIR(fh(hf(a) + hf(b))); t["sub.f16x2"] = PAIR(fh(hf(a) - hf(b)));
    t["fma.rn.f16x2"] = PAIR(fh((float)((double)hf(a) * hf(b) + hf(c)))); t["max.f16x2"] = PAIR(fh(fmaxf(hf(a), hf(b)))); t["min.f16x2"] = PAIR(fh(fminf(hf(a), hf(b))));
    t["neg.f16x2"] = E1(a ^ 0x80008000); t["abs.f16x2"] = E1(a & 0x7fff7fff); t["mul.f16"] = E1(fh(hf(a) * hf(b))); t["add.f16"] = E1(fh(hf(a) + hf(b))); t["sub.f16"] = E1(fh(hf(a) - hf(b))); t["neg.f16"] = E1(a ^ 0x8000);
    t["fma.rn.f16"] = E1(fh((float)((double)hf(a) * hf(b) + hf(c))));
    t["popc.b32"] = E1((u32)__builtin_popcount(a)); t["clz.b32"] = E1(a ? (u32)__builtin_clz(a) : 32); t["bfind.u32"] = E1(a ? 31u - (u32)__builtin_clz(a) : ~0u);
    t["dp4a.s32.s32"] = [](u32 a, u32 b, u32 c) -> u32 { s32 s = (s32)c; for (int i = 0; i < 4; i++) s += (s32)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i); return (u32)s; };
    t["prmt.b32"] = [](u32 a, u32 b, u32 c) -> u32 { u64 x = a | (u64)b << 32; u32 r = 0; for (int i = 0; i < 4; i++) { u32 s = c >> 4 * i & 15; u32 v = x >> 8 * (s & 7) & 255; if (s & 8) v = v & 128 ? 255 : 0; r |= v << 8 * i; } return r; };
    t["and.b16"] = t["and.b32"]; t["cvt.u16.u32"] = E1(a & 65535); t["cvt.u32.u16"] = E1(a); t["mul.wide.u16"] = E1(a * b);
    t["add.s16"] = E1((a + b) & 65535); t["sub.s16"] = E1((a - b) & 65535); t["mul.lo.s16"] = E1(a * b & 65535); t["rcp.rn.f32"] = E1(bi(1.0f / fl(a)));
    t["div.rn.f32"] = t["div.full.f32"]; t["ex2.approx.f32"] = E1(bi(exp2f(fl(a))));
    t["and.pred"] = E1(a & b); t["or.pred"] = E1(a | b); t["xor.pred"] = E1(a ^ b); t["not.pred"] = E1(!a);
    return t;
}
static map<string, F64> table64() {
    map<string, F64> t;
    t["add.u64"] = t["add.s64"] = [](u64 a, u64 b) { return a + b; }; t["sub.s64"] = [](u64 a, u64 b) { return a - b; }; t["mul.lo.s64"] = [](u64 a, u64 b) { return a * b; };
    t["and.b64"] = [](u64 a, u64 b) { return a & b; }; t["or.b64"] = [](u64 a, u64 b) { return a | b; }; t["shl.b64"] = [](u64 a, u64 b) { return b > 63 ? 0 : a << b; }; t["shr.u64"] = [](u64 a, u64 b) { return b > 63 ? 0 : a >> b; };
    t["mul.wide.u32"] = [](u64 a, u64 b) { return (u64)(u32)a * (u32)b; }; t["mul.wide.s32"] = [](u64 a, u64 b) { return (u64)((s64)(s32)a * (s32)b); }; t["cvt.s64.s32"] = [](u64 a, u64) { return (u64)(s64)(s32)a; };
    return t;
}
static u64 number(const string& s) {
    if (s.rfind("0f", 0) == 0) return strtoull(s.c_str() + 2, nullptr, 16);
    if (s[0] == '-') return (u64)strtoll(s.c_str(), nullptr, 10);
    return strtoull(s.c_str(), nullptr, 0);
}
// The kernels of a text by name; that of naga-ptx is `main`.
typedef map<string, Kernel*> Module;
static Module* parse(const char* text) {
    static map<string, F> T = table(); static map<string, F64> T64 = table64();
    auto* module = new Module; auto* k = new Kernel; (*module)["main"] = k; int floats = 0; // where %f begins among %r
    map<string, int> labels; map<string, pair<K, int>> names; // shared, param, local
    vector<pair<int, string>> jumps;
    istringstream in(text); string line; int regs = 0; (void)regs;
    auto reg = [&](const string& s, Opd& o) -> bool {
        if (s == "low" || s == "high") { o.k = H; o.i = k->n[H] + (s == "low" ? 1 : 2); return true; }
        if (s[0] != '%') return false;
        char c = s[1];
        if (c == 'f' && isdigit((unsigned char)s[2])) { o.k = R; o.i = floats + atoi(s.c_str() + 2); return true; }
        if ((c == 'r') && (s[2] == 's' || s[2] == 'd') && isdigit((unsigned char)s[3])) { o.k = s[2] == 's' ? H : D; o.i = atoi(s.c_str() + 3); return true; }
        if (isdigit((unsigned char)s[2])) { o.i = atoi(s.c_str() + 2); o.k = c == 'r' ? R : c == 'h' ? H : c == 'p' ? P : D; return true; }
        static const char* sp[] = {"%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};
        for (int i = 0; i < 10; i++) if (s == sp[i]) { o.k = SPEC; o.i = i; return true; }
        fprintf(stderr, "emu: register %s\n", s.c_str()); abort();
    };
    while (getline(in, line)) {
        size_t a = line.find_first_not_of(" \t"); if (a == string::npos) continue;
        string s = line.substr(a);
        for (char& c : s) if (c == '\t') c = ' ';
        if (s.size() > 2 && s[0] == '{' && s[1] != '.') s = s.substr(s.find_first_not_of(' ', 1));
        if (s.rfind(".visible .entry ", 0) == 0 && s.find("main(") == string::npos) {
            for (auto& j : jumps) k->code[j.first].target = labels.at(j.second);
            jumps.clear(); labels.clear(); floats = 0; k = new Kernel; k->named = true;
            k->label = s.substr(16, s.find('(') - 16); (*module)[k->label] = k; continue;
        }
        if (s.rfind(".param", 0) == 0) {
            string name = s.substr(k->named ? s.find(".b8 ") + 4 : s.find("param_")); int size = 8;
            while (!name.empty() && (name.back() == ',' || name.back() == ' ')) name.pop_back();
            size_t b = name.find('['); if (b != string::npos) { size = atoi(name.c_str() + b + 1); name = name.substr(0, b); } else if (s.find(".u32") != string::npos) size = 4;
            k->psize = (k->psize + 15) & ~15; names[name] = {P, k->psize}; k->params.push_back({k->psize, size}); k->psize += size; continue;
        }
        if (s.rfind(".reg", 0) == 0) { // nvcc's %f lie behind %r
            size_t p = s.find('%'); string c = s.substr(p + 1, s.find('<') - p - 1); int n = atoi(s.c_str() + s.find('<') + 1);
            if (c == "r") floats = n;
            k->n[c == "r" || c == "f" ? R : c == "h" || c == "rs" ? H : c == "p" ? P : D] += n; continue;
        }
        if (s.rfind(".extern .shared", 0) == 0) { size_t p = s.find(".b8 ") + 4; names[s.substr(p, s.find('[') - p)] = {R, DYNAMIC}; continue; }
        if (s.rfind(".shared", 0) == 0 || s.rfind(".local", 0) == 0) {
            bool sh = s[1] == 's'; size_t p = s.rfind(' ') + 1, b = s.find_first_of("[;", p); int size = s[b] == '[' ? atoi(s.c_str() + b + 1) : 4; int& n = sh ? k->shared : k->local; int align = s.find(".align ") == string::npos ? 16 : max(16, atoi(s.c_str() + s.find(".align ") + 7)); n = (n + align - 1) / align * align;
            names[s.substr(p, b - p)] = {sh ? R : H, n}; n += size; continue;
        }
        if ((s[0] == 'L' || s[0] == '$') && s.find(':') != string::npos) { labels[s.substr(0, s.find(':'))] = (int)k->code.size(); continue; }
        if (s.rfind("// ", 0) == 0 && k->label.empty()) { k->label = s.substr(3); continue; }
        if (s[0] == '.' || s[0] == '{' || s[0] == '}' || s[0] == ')' || s[0] == '/') continue;
        Ins x; x.text = s;
        if (s[0] == '@') { size_t p = s.find(' '); string g = s.substr(1, p - 1); if (g[0] == '!') { x.neg = true; g = g.substr(1); } x.g = atoi(g.c_str() + 2); s = s.substr(p + 1); }
        size_t sp = s.find_first_of(" ;"); string op = s.substr(0, sp), rest = s.substr(sp); size_t sc = rest.find(';'); rest = rest.substr(0, sc);
        bool braces = rest.find('{') != string::npos;
        string cur; vector<string> parts;
        for (char c : rest) { if (c == ',' ) { parts.push_back(cur); cur.clear(); } else if (c != ' ' && c != '{' && c != '}') cur += c; }
        if (!cur.empty()) parts.push_back(cur);
        for (auto& p : parts) {
            Opd o;
            if (p[0] == '[') {
                string q = p.substr(1, p.size() - 2); size_t pl = q.find('+'); if (pl != string::npos) { o.off = strtoll(q.c_str() + pl + 1, nullptr, 10); q = q.substr(0, pl); }
                o.k = ADDR; Opd b; if (reg(q, b)) { o.base = b.k; o.i = b.i; } else { o.base = IMM; o.imm = names.at(q).second; }
            } else if (!reg(p, o)) {
                if (names.count(p)) { o.k = IMM; o.imm = names[p].second; if (names[p].first != R) o.imm |= names[p].first == H ? 1ull << 62 : 1ull << 61; }
                else if (p[0] == 'L' || p[0] == '$') { jumps.push_back({(int)k->code.size(), p}); }
                else { o.k = IMM; o.imm = number(p); }
            }
            x.o.push_back(o);
        }
        auto has = [&](const char* q) { return op.find(q) != string::npos; };
        if (op == "bra" || op == "bra.uni") x.op = BRA; else if (op == "ret") x.op = RET;
        else if (op == "mov.pred") x.op = MOV; else if (op.rfind("mov.", 0) == 0) x.op = braces ? (rest[rest.find_first_not_of(' ')] == '{' ? UNPACK : PACK) : MOV;
        else if (op.rfind("cvta", 0) == 0) x.op = MOV;
        else if (op == "cvt.u64.u32" || op == "cvt.u32.u64") x.op = MOV;
        else if (op.rfind("cp.async.cg", 0) == 0) x.op = CPASYNC; else if (op == "cp.async.commit_group") x.op = COMMIT; else if (op == "cp.async.wait_group" || op == "cp.async.wait_all") x.op = WAITGROUP;
        else if (op == "redux.sync.max.u32") x.op = REDUX; else if (op == "bfi.b32") x.op = BFI;
        else if (op == "bar.sync") x.op = BARSYNC; else if (op == "bar.warp.sync") x.op = BARWARP;
        else if (op.rfind("fence", 0) == 0 || op.rfind("membar", 0) == 0 || op.rfind("griddepcontrol", 0) == 0) x.op = NOP;
        else if (op.rfind("ldmatrix", 0) == 0) { x.op = LDM; x.trans = has(".trans"); } else if (op.rfind("movmatrix", 0) == 0) x.op = MOVM; else if (op.rfind("mma", 0) == 0) x.op = MMA;
        else if (op.rfind("shfl", 0) == 0) { x.op = SHFL; x.mode = has(".idx") ? 0 : has(".bfly") ? 1 : has(".down") ? 2 : 3; }
        else if (op.rfind("atom", 0) == 0) { x.op = has(".cas") ? ATOMCAS : ATOM; x.mode = has(".add") ? 0 : has(".max.u") ? 1 : has(".min.u") ? 2 : has(".exch") ? 3 : has(".or") ? 4 : 5; x.space = has("shared") ? 1 : 0; }
        else if (op.rfind("ld.", 0) == 0 || op.rfind("st.", 0) == 0) {
            x.op = op[0] == 'l' ? LD : ST; x.space = has("global") ? 0 : has("shared") ? 1 : has("param") ? 2 : 3; x.w = has(".v4") ? 4 : has(".v2") ? 2 : 1; x.bytes = has("64") ? 8 : has("b16") || has("u16") ? 2 : 4;
        } else if (op.rfind("setp.", 0) == 0) {
            x.op = SETP; string q = op.substr(5); string c = q.substr(0, q.find('.')); static const char* cs[] = {"eq", "ne", "lt", "le", "gt", "ge", "neu"}; x.cmp = -1; for (int i = 0; i < 7; i++) if (c == cs[i]) x.cmp = i;
            x.band = has(".and."); x.ty = has("f32") ? 2 : has("f16") ? 3 : has("s32") ? 1 : has("64") ? 4 : 0; if (has("s16") && x.cmp > 1) { fprintf(stderr, "emu: %s\n", op.c_str()); abort(); } if (x.cmp < 0) { fprintf(stderr, "emu: %s\n", op.c_str()); abort(); }
        } else if (op.rfind("selp.", 0) == 0) x.op = SELP;
        else if (op == "mad.wide.u32" || op == "mad.wide.s32") { x.op = MADW; x.sgn = op[9] == 's'; }
        else if (T64.count(op)) { x.op = A64; x.f64 = T64[op]; while (x.o.size() < 3) x.o.push_back(Opd{IMM}); }
        else { auto it = T.find(op); if (it == T.end()) { fprintf(stderr, "emu: no %s in: %s\n", op.c_str(), x.text.c_str()); abort(); } x.op = A3; x.f = it->second; while (x.o.size() < 4) x.o.push_back(Opd{IMM}); }
        k->code.push_back(x);
    }
    for (auto& j : jumps) k->code[j.first].target = labels.at(j.second);
    for (auto& [name, kernel] : *module) for (auto& x : kernel->code) for (auto& o : x.o)
        if (o.imm == DYNAMIC && (o.k == IMM || o.k == ADDR)) o.imm = (kernel->shared + 15) / 16 * 16;
    return module;
}
// A copy of 16 bytes, the first ones from memory and zeros behind them: it is made when its group is waited for.
struct Copy { uint8_t* to; const uint8_t* from; u32 bytes; };
struct Th { vector<u32> r; vector<u16> h; vector<uint8_t> p; vector<u64> d; vector<uint8_t> local; int pc = 0; int st = 0; u32 tid[3]; int lane = 0; vector<Copy> copies; vector<vector<Copy>> groups; };
static void launch(Kernel* k, const u32* grid, const u32* blk, u32 dynamic, const vector<uint8_t>& params) {
    int nt = blk[0] * blk[1] * blk[2]; long nb = (long)grid[0] * grid[1] * grid[2];
    static const char* most = getenv("EMU_MOST"); // threads of a launch that is left out, for measurements of speed
    if (k->label.rfind("peak/", 0) == 0) return; // measures speed alone
    if (most && nb * nt > (k->label.rfind("linear/", 0) == 0 ? atol(most) : 100 * atol(most))) return;
    const Ins* code = k->code.data(); int len = (int)k->code.size();
#pragma omp parallel for schedule(dynamic)
    for (long b = 0; b < nb; b++) {
        static thread_local vector<Th> ths; vector<uint8_t> shared(k->shared + dynamic + 64, 0xA5);
        ths.resize(nt);
        u32 cta[3] = {(u32)(b % grid[0]), (u32)(b / grid[0] % grid[1]), (u32)(b / grid[0] / grid[1])};
        for (int t = 0; t < nt; t++) { Th& h = ths[t]; h.r.assign(k->n[R] + 1, 0xBADBAD); h.h.resize(k->n[H] + 3); h.copies.clear(); h.groups.clear(); h.p.resize(k->n[P] + 1); h.d.resize(k->n[D] + 1); h.local.resize(k->local + 16); h.pc = 0; h.st = 0; h.tid[0] = t % blk[0]; h.tid[1] = t / blk[0] % blk[1]; h.tid[2] = t / blk[0] / blk[1]; h.lane = t & 31; }
        auto run = [&](Th& h) {
            auto get = [&](const Opd& o) -> u32 { switch (o.k) { case R: return h.r[o.i]; case H: return h.h[o.i]; case P: return h.p[o.i]; case IMM: return (u32)o.imm;
                case SPEC: return o.i < 3 ? h.tid[o.i] : o.i < 6 ? cta[o.i - 3] : o.i < 9 ? grid[o.i - 6] : (u32)h.lane; default: return (u32)h.d[o.i]; } };
            auto get64 = [&](const Opd& o) -> u64 { return o.k == D ? h.d[o.i] : o.k == IMM ? o.imm : get(o); };
            auto put = [&](const Opd& o, u32 v) { switch (o.k) { case R: h.r[o.i] = v; break; case H: h.h[o.i] = (u16)v; break; case P: h.p[o.i] = v & 1; break; default: h.d[o.i] = v; } };
            auto addr = [&](const Opd& o, int space) -> uint8_t* {
                u64 a = (o.base == IMM ? (o.imm & ~(7ull << 60)) : o.base == D ? h.d[o.i] : h.r[o.i]);
                if (space == 0) return (uint8_t*)(a + o.off);
                a &= ~(7ull << 60); a += o.off;
                if (space == 1) { if (a + 4 > (u64)k->shared + dynamic + 16) { fprintf(stderr, "emu: %s: shared %llu of %d\n", k->label.c_str(), (unsigned long long)a, k->shared + (int)dynamic); abort(); } return shared.data() + a; }
                return space == 2 ? (uint8_t*)params.data() + a : h.local.data() + a; };
            for (;;) {
                if (h.pc >= len) { h.st = 3; return; }
                const Ins& x = code[h.pc];
                if (x.g >= 0 && (h.p[x.g] != 0) == x.neg) { if (k->named) { h.pc++; continue; } if (x.op == LD || x.op == ST || x.op == ATOM) { if (!__atomic_fetch_add(&k->skipped, 1, __ATOMIC_RELAXED) || (x.op != LD && getenv("EMU_STORES"))) fprintf(stderr, "emu: outside its binding: %s: %s of block %u,%u,%u thread %u\n", k->label.c_str(), x.text.c_str(), cta[0], cta[1], cta[2], h.tid[0]); } h.pc++; continue; }
                switch (x.op) {
                case BRA: h.pc = x.target; continue;
                case RET: h.st = 3; return;
                case MOV: if (x.o[0].k == D) h.d[x.o[0].i] = get64(x.o[1]); else put(x.o[0], get(x.o[1])); break;
                case UNPACK: { u32 v = get(x.o[2]); put(x.o[0], v & 65535); put(x.o[1], v >> 16); break; }
                case PACK: put(x.o[0], get(x.o[1]) | get(x.o[2]) << 16); break;
                case LD: { const Opd& a = x.o[x.w]; uint8_t* q = addr(a, x.space); if ((u64)q % (x.bytes * x.w) && x.space != 2) { fprintf(stderr, "emu: misaligned %s\n", x.text.c_str()); abort(); }
                    for (int i = 0; i < x.w; i++) { if (x.bytes == 8) memcpy(&h.d[x.o[i].i], q, 8); else if (x.bytes == 4) { u32 v; memcpy(&v, q + 4 * i, 4); put(x.o[i], v); } else { u16 v; memcpy(&v, q, 2); put(x.o[i], v); } } break; }
                case ST: { uint8_t* q = addr(x.o[0], x.space); if ((u64)q % (x.bytes * x.w)) { fprintf(stderr, "emu: misaligned %s\n", x.text.c_str()); abort(); }
                    for (int i = 0; i < x.w; i++) { u32 v = get(x.o[1 + i]); memcpy(q + x.bytes * i, &v, x.bytes); } break; }
                case SETP: { bool r; if (x.ty == 4) { u64 a = get64(x.o[1]), c = get64(x.o[2]); r = x.cmp == 0 ? a == c : x.cmp == 1 ? a != c : x.cmp == 2 ? a < c : x.cmp == 3 ? a <= c : x.cmp == 4 ? a > c : a >= c; }
                    else { u32 a = get(x.o[1]), c = get(x.o[2]);
#define CMP(A, C) (x.cmp == 0 ? (A) == (C) : x.cmp == 1 || x.cmp == 6 ? (A) != (C) : x.cmp == 2 ? (A) < (C) : x.cmp == 3 ? (A) <= (C) : x.cmp == 4 ? (A) > (C) : (A) >= (C))
                    r = x.ty == 2 ? CMP(fl(a), fl(c)) : x.ty == 3 ? CMP(hf(a), hf(c)) : x.ty == 1 ? CMP((s32)a, (s32)c) : CMP(a, c); }
                    if (x.band) r = r && h.p[x.o[3].i]; h.p[x.o[0].i] = r; break; }
                case SELP: if (x.o[0].k == D) { h.d[x.o[0].i] = h.p[x.o[3].i] ? get64(x.o[1]) : get64(x.o[2]); break; } put(x.o[0], h.p[x.o[3].i] ? get(x.o[1]) : get(x.o[2])); break;
                case MADW: h.d[x.o[0].i] = (x.sgn ? (u64)((s64)(s32)get(x.o[1]) * (s64)(s32)get(x.o[2])) : (u64)get(x.o[1]) * get(x.o[2])) + get64(x.o[3]); break;
                case A3: put(x.o[0], x.f(get(x.o[1]), get(x.o[2]), get(x.o[3]))); break;
                case ATOM: { u32* q = (u32*)addr(x.o[1], x.space); u32 v = get(x.o[2]), old;
                    if (x.mode == 0) old = __atomic_fetch_add(q, v, __ATOMIC_SEQ_CST); else { old = __atomic_load_n(q, __ATOMIC_SEQ_CST); for (;;) { u32 n = x.mode == 1 ? max(old, v) : x.mode == 2 ? min(old, v) : x.mode == 3 ? v : x.mode == 4 ? old | v : old & v; if (__atomic_compare_exchange_n(q, &old, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) break; } }
                    put(x.o[0], old); break; }
                case A64: h.d[x.o[0].i] = x.f64(get64(x.o[1]), get64(x.o[2])); break;
                case BFI: { u32 at = get(x.o[3]), bits = get(x.o[4]), mask = (bits > 31 ? ~0u : (1u << bits) - 1) << at; put(x.o[0], (get(x.o[2]) & ~mask) | (get(x.o[1]) << at & mask)); break; }
                case CPASYNC: { Copy c{addr(x.o[0], 1), addr(x.o[1], 0), x.o.size() > 3 ? get(x.o[3]) : 16}; if ((u64)c.from % 16 || (c.to - shared.data()) % 16 || c.bytes > 16 || c.to + 16 > shared.data() + k->shared + dynamic) { fprintf(stderr, "emu: %s\n", x.text.c_str()); abort(); } h.copies.push_back(c); break; }
                case COMMIT: h.groups.push_back(h.copies); h.copies.clear(); break;
                case WAITGROUP: { size_t left = x.o.empty() ? 0 : get(x.o[0]); if (x.o.empty()) { h.groups.push_back(h.copies); h.copies.clear(); }
                    while (h.groups.size() > left) { for (auto& c : h.groups[0]) { memset(c.to, 0, 16); memcpy(c.to, c.from, c.bytes); } h.groups.erase(h.groups.begin()); } break; }
                case NOP: break;
                case BARSYNC: h.st = 2; return;
                default: h.st = 1; return; // together with the warp
                }
                h.pc++;
            }
        };
        int nw = (nt + 31) / 32; bool any = true;
        while (any) {
            any = false;
            for (int w = 0; w < nw; w++) {
                int lo = w * 32, hi = min(nt, lo + 32);
                for (;;) {
                    int first = -1; bool same = true, wait = false;
                    for (int t = lo; t < hi; t++) { if (ths[t].st == 0) run(ths[t]); }
                    for (int t = lo; t < hi; t++) { if (ths[t].st == 1) { if (first < 0) first = ths[t].pc; else if (first != ths[t].pc) same = false; } if (ths[t].st == 2) wait = true; }
                    if (first < 0) break;
                    if (!same || wait) { fprintf(stderr, "emu: a warp is not together at %s\n", code[first].text.c_str()); abort(); }
                    const Ins& x = code[first];
                    auto lane = [&](int l) -> Th& { return ths[lo + l]; };
                    if (x.op != BARWARP && hi - lo != 32) { fprintf(stderr, "emu: part of a warp at %s\n", x.text.c_str()); abort(); }
                    if (x.op == SHFL) { u32 v[32]; for (int l = 0; l < 32; l++) v[l] = lane(l).r[x.o[1].i]; for (int l = 0; l < 32; l++) { Th& h = lane(l); u32 i = x.o[2].k == R ? h.r[x.o[2].i] : (u32)x.o[2].imm; int s = x.mode == 0 ? (int)(i & 31) : x.mode == 1 ? (int)(l ^ i) : x.mode == 2 ? l + (int)i : l - (int)i; if (s < 0 || s > 31) s = l; h.r[x.o[0].i] = v[s]; } }
                    else if (x.op == REDUX) { u32 most = 0; for (int l = 0; l < 32; l++) most = max(most, lane(l).r[x.o[1].i]); for (int l = 0; l < 32; l++) lane(l).r[x.o[0].i] = most; }
                    else if (x.op == MOVM) { u16 m[8][8]; for (int l = 0; l < 32; l++) { u32 v = lane(l).r[x.o[1].i]; m[l / 4][2 * (l % 4)] = v; m[l / 4][2 * (l % 4) + 1] = v >> 16; } for (int l = 0; l < 32; l++) lane(l).r[x.o[0].i] = m[2 * (l % 4)][l / 4] | (u32)m[2 * (l % 4) + 1][l / 4] << 16; }
                    else if (x.op == LDM) { for (int i = 0; i < 4; i++) { u16 m[8][8]; for (int j = 0; j < 8; j++) { Th& h = lane(8 * i + j); const Opd& a = x.o[4]; u64 q = (a.base == IMM ? a.imm : h.r[a.i]) + a.off; if (q % 16) { fprintf(stderr, "emu: ldmatrix misaligned\n"); abort(); } memcpy(m[j], shared.data() + q, 16); } for (int l = 0; l < 32; l++) lane(l).r[x.o[i].i] = x.trans ? m[2 * (l % 4)][l / 4] | (u32)m[2 * (l % 4) + 1][l / 4] << 16 : m[l / 4][2 * (l % 4)] | (u32)m[l / 4][2 * (l % 4) + 1] << 16; } }
                    else if (x.op == MMA) {
                        float A[16][16], B[16][8]; for (int l = 0; l < 32; l++) { Th& h = lane(l); int g = l / 4, t = l % 4; for (int q = 0; q < 4; q++) { u32 v = h.r[x.o[4 + q].i]; int r = g + 8 * (q & 1), c = 2 * t + 8 * (q >> 1); A[r][c] = hf(v & 65535); A[r][c + 1] = hf(v >> 16); } for (int q = 0; q < 2; q++) { u32 v = h.r[x.o[8 + q].i]; B[2 * t + 8 * q][g] = hf(v & 65535); B[2 * t + 8 * q + 1][g] = hf(v >> 16); } }
                        for (int l = 0; l < 32; l++) { Th& h = lane(l); int g = l / 4, t = l % 4; float out[4]; for (int q = 0; q < 4; q++) { int r = g + 8 * (q >> 1), c = 2 * t + (q & 1); double s = fl(h.r[x.o[10 + q].i]); for (int i = 0; i < 16; i++) s += (double)A[r][i] * B[i][c]; out[q] = (float)s; } for (int q = 0; q < 4; q++) h.r[x.o[q].i] = bi(out[q]); }
                    } else if (x.op != BARWARP) { fprintf(stderr, "emu: %s\n", x.text.c_str()); abort(); }
                    for (int t = lo; t < hi; t++) if (ths[t].st == 1) { ths[t].pc++; ths[t].st = 0; }
                }
            }
            int done = 0; bool waiting = false; map<u32, vector<Th*>> at; // by barrier
            for (auto& h : ths) { done += h.st == 3; if (h.st == 2) { waiting = true; at[(u32)code[h.pc].o[0].imm].push_back(&h); } }
            for (auto& [id, all] : at) {
                const Ins& x = code[all[0]->pc]; size_t wanted = x.o.size() > 1 ? x.o[1].imm : nt - done;
                for (auto* h : all) if (h->pc != all[0]->pc) { fprintf(stderr, "emu: %s: different barriers\n", k->label.c_str()); abort(); }
                if (all.size() == wanted) { any = true; for (auto* h : all) { h->pc++; h->st = 0; } }
            }
            if (waiting && !any) { fprintf(stderr, "emu: %s: a barrier lacks threads\n", k->label.c_str()); abort(); }
        }
    }
}
typedef uint64_t Ptr; typedef void* Hd;
// What a captured stream would run, in place of running it. A node is known by its address; a graph that was made of a template has its nodes.
typedef function<void()> Node;
typedef vector<shared_ptr<Node>> Graph;
struct Exec { vector<Node> nodes; map<Hd, size_t> places; };
static Hd captured = nullptr; static Graph* graph = nullptr;
static int act(Hd stream, Node f) { if (stream == captured && stream) graph->push_back(make_shared<Node>(f)); else f(); return 0; }
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGet(int* d, int i) { *d = i; return 0; }
int cuDeviceGetName(char* s, int, int) { strcpy(s, "Emulated"); return 0; }
int cuDeviceGetAttribute(int* v, int a, int) { *v = a == 75 ? 8 : a == 76 ? 0 : a == 8 ? 49152 : a == 16 ? 132 : 1; return 0; }
int cuDeviceTotalMem_v2(size_t* n, int) { *n = 8ull << 30; return 0; }
int cuDeviceGetPCIBusId(char* s, int, int) { strcpy(s, "0000:01:00.0"); return 0; }
int cuDevicePrimaryCtxRetain(Hd* c, int) { *c = (Hd)1; return 0; }
int cuCtxSetCurrent(Hd) { return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuDeviceGetDefaultMemPool(Hd* p, int) { *p = (Hd)1; return 0; }
int cuMemPoolSetAttribute(Hd, int, void*) { return 0; }
int cuMemAllocAsync(Ptr* p, size_t n, Hd) { void* q; if (posix_memalign(&q, 256, n + (1 << 16))) return 2; memset(q, 0x7f, n + (1 << 16)); *p = (Ptr)q; return 0; }
int cuMemFreeAsync(Ptr p, Hd) { free((void*)p); return 0; }
int cuMemAlloc_v2(Ptr* p, size_t n) { return cuMemAllocAsync(p, n, 0); }
int cuMemFree_v2(Ptr p) { free((void*)p); return 0; }
int cuMemHostAlloc(void** p, size_t n, unsigned) { *p = malloc(n); return 0; }
int cuMemFreeHost(void* p) { free(p); return 0; }
int cuStreamCreate(Hd* s, unsigned) { *s = malloc(8); return 0; }
int cuStreamDestroy_v2(Hd s) { free(s); return 0; }
int cuStreamBeginCapture_v2(Hd s, int) { captured = s; graph = new Graph; return 0; }
int cuStreamEndCapture(Hd, Hd* g) { *g = graph; captured = nullptr; return 0; }
int cuStreamGetCaptureInfo_v2(Hd s, int* status, u64*, Hd*, const Hd** nodes, size_t* n) {
    static Hd last; if (s != captured || graph->empty()) return 1;
    last = graph->back().get(); *status = 1; *nodes = &last; *n = 1; return 0; }
int cuGraphInstantiateWithFlags(Hd* e, Hd g, unsigned long long) { auto* of = new Exec; for (auto& node : *(Graph*)g) { of->places[node.get()] = of->nodes.size(); of->nodes.push_back(*node); } *e = of; return 0; }
int cuGraphLaunch(Hd e, Hd) { for (auto& f : ((Exec*)e)->nodes) f(); return 0; }
int cuGraphDestroy(Hd g) { delete (Graph*)g; return 0; }
int cuGraphExecDestroy(Hd e) { delete (Exec*)e; return 0; }
int cuStreamSynchronize(Hd) { return 0; }
int cuModuleLoadDataEx(Hd* m, const void* t, unsigned, int*, void**) { *m = parse((const char*)t); return 0; }
int cuModuleUnload(Hd m) { for (auto& k : *(Module*)m) delete k.second; delete (Module*)m; return 0; }
int cuModuleGetFunction(Hd* f, Hd m, const char* name) { auto k = ((Module*)m)->find(name); if (k == ((Module*)m)->end()) return 500; *f = k->second; return 0; }
int cuFuncSetAttribute(Hd, int, int) { return 0; }
struct Config { u32 grid[3], threads[3], shared; Hd stream; const void* attributes; u32 count; };
int cuLaunchKernelEx(const Config* config, Hd f, void** p, void** extra) {
    Config of = *config;
    Kernel* k = (Kernel*)f;
    vector<uint8_t> params(k->psize + 16);
    if (extra) { // one struct: 1, its address, 2, the address of its size
        if (*(size_t*)extra[3] != (size_t)k->psize) { fprintf(stderr, "emu: %s has parameters of %d bytes\n", k->label.c_str(), k->psize); return 1; }
        memcpy(params.data(), extra[1], k->psize);
    } else for (size_t i = 0; i < k->params.size(); i++) memcpy(params.data() + k->params[i].off, p[i], k->params[i].size);
    return act(of.stream, [=]() { launch(k, of.grid, of.threads, of.shared, params); }); }
struct KernelNode { Hd f; u32 grid[3], threads[3], shared; void** p; void** extra; };
int cuGraphExecKernelNodeSetParams(Hd e, Hd node, const KernelNode* params) {
    Exec* of = (Exec*)e; auto place = of->places.find(node); if (place == of->places.end() || params->extra) return 1;
    KernelNode with = *params; Kernel* k = (Kernel*)with.f; vector<uint8_t> values(k->psize + 16);
    for (size_t i = 0; i < k->params.size(); i++) memcpy(values.data() + k->params[i].off, with.p[i], k->params[i].size);
    of->nodes[place->second] = [=]() { launch(k, with.grid, with.threads, with.shared, values); }; return 0; }
int cuMemcpyHtoDAsync_v2(Ptr d, const void* s, size_t n, Hd) { memcpy((void*)d, s, n); return 0; }
int cuMemcpyAsync(Ptr d, Ptr s, size_t n, Hd t) { return act(t, [=] { memcpy((void*)d, (void*)s, n); }); }
int cuMemsetD8Async(Ptr d, unsigned char v, size_t n, Hd t) { return act(t, [=] { memset((void*)d, v, n); }); }
int cuEventCreate(Hd* e, unsigned) { *e = malloc(8); return 0; }
int cuEventRecord(Hd, Hd) { return 0; }
int cuStreamWaitEvent(Hd, Hd, unsigned) { return 0; }
int cuEventQuery(Hd) { return 0; }
int cuEventSynchronize(Hd) { return 0; }
int cuEventElapsedTime(float* m, Hd, Hd) { *m = 0.01f; return 0; }
int cuEventDestroy_v2(Hd e) { free(e); return 0; }
int cuGetErrorName(int, const char** s) { *s = "EMU"; return 0; }
int cuGetErrorString(int, const char** s) { *s = "emulated error"; return 0; }
}
