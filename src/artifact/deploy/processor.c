/* Which instructions the machine has. Needs no more than the baseline itself, so that a machine that lacks what the kernels need gets an
 * error. */

#include "cpu.h"

#include "../../runtime/runtime.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)

enum word { L1C, L1D, L7B, L7C, L7D, L71A, L71D, LD1A, X1C, X1D, X8B, L14B, WORDS };
/* What the operating system must save for the feature to be usable. */
enum saved { PLAIN = 0, YMM = 0x6, ZMM = 0xe6, TILES = 0x60000 };

/* LLVM's names, and where cpuid answers (Intel and AMD manuals, instruction CPUID). */
static const struct { const char *name; uint8_t word, bit; uint32_t state; } known[] = {
    {"64bit", X1D, 29, PLAIN}, {"adx", L7B, 19, PLAIN}, {"aes", L1C, 25, PLAIN},
    {"amx-bf16", L7D, 22, TILES}, {"amx-complex", L71D, 8, TILES}, {"amx-fp16", L71A, 21, TILES},
    {"amx-int8", L7D, 25, TILES}, {"amx-tile", L7D, 24, TILES}, {"avx", L1C, 28, YMM},
    {"avx2", L7B, 5, YMM}, {"avx512bf16", L71A, 5, ZMM}, {"avx512bitalg", L7C, 12, ZMM},
    {"avx512bw", L7B, 30, ZMM}, {"avx512cd", L7B, 28, ZMM}, {"avx512dq", L7B, 17, ZMM},
    {"avx512f", L7B, 16, ZMM}, {"avx512fp16", L7D, 23, ZMM}, {"avx512ifma", L7B, 21, ZMM},
    {"avx512vbmi", L7C, 1, ZMM}, {"avx512vbmi2", L7C, 6, ZMM}, {"avx512vl", L7B, 31, ZMM},
    {"avx512vnni", L7C, 11, ZMM}, {"avx512vp2intersect", L7D, 8, ZMM}, {"avx512vpopcntdq", L7C, 14, ZMM},
    {"avxifma", L71A, 23, YMM}, {"avxneconvert", L71D, 5, YMM}, {"avxvnni", L71A, 4, YMM},
    {"avxvnniint16", L71D, 10, YMM}, {"avxvnniint8", L71D, 4, YMM}, {"bmi", L7B, 3, PLAIN},
    {"bmi2", L7B, 8, PLAIN}, {"cldemote", L7C, 25, PLAIN}, {"clflushopt", L7B, 23, PLAIN},
    {"clwb", L7B, 24, PLAIN}, {"clzero", X8B, 0, PLAIN}, {"cmov", L1D, 15, PLAIN},
    {"cmpccxadd", L71A, 7, PLAIN}, {"crc32", L1C, 20, PLAIN}, {"cx16", L1C, 13, PLAIN},
    {"cx8", L1D, 8, PLAIN}, {"enqcmd", L7C, 29, PLAIN}, {"f16c", L1C, 29, YMM},
    {"fma", L1C, 12, YMM}, {"fma4", X1C, 16, YMM}, {"fsgsbase", L7B, 0, PLAIN},
    {"fxsr", L1D, 24, PLAIN}, {"gfni", L7C, 8, PLAIN}, {"hreset", L71A, 22, PLAIN},
    {"invpcid", L7B, 10, PLAIN}, {"lwp", X1C, 15, PLAIN}, {"lzcnt", X1C, 5, PLAIN},
    {"mmx", L1D, 23, PLAIN}, {"movbe", L1C, 22, PLAIN}, {"movdir64b", L7C, 28, PLAIN},
    {"movdiri", L7C, 27, PLAIN}, {"mwaitx", X1C, 29, PLAIN}, {"pclmul", L1C, 1, PLAIN},
    {"pconfig", L7D, 18, PLAIN}, {"pku", L7C, 4, PLAIN}, {"popcnt", L1C, 23, PLAIN},
    {"prefetchi", L71D, 14, PLAIN}, {"prfchw", X1C, 8, PLAIN}, {"ptwrite", L14B, 4, PLAIN},
    {"rdpid", L7C, 22, PLAIN}, {"rdpru", X8B, 4, PLAIN}, {"rdrnd", L1C, 30, PLAIN},
    {"rdseed", L7B, 18, PLAIN}, {"rtm", L7B, 11, PLAIN}, {"sahf", X1C, 0, PLAIN},
    {"serialize", L7D, 14, PLAIN}, {"sgx", L7B, 2, PLAIN}, {"sha", L7B, 29, PLAIN},
    {"sha512", L71A, 0, YMM}, {"shstk", L7C, 7, PLAIN}, {"sm3", L71A, 1, YMM},
    {"sm4", L71A, 2, YMM}, {"sse", L1D, 25, PLAIN}, {"sse2", L1D, 26, PLAIN},
    {"sse3", L1C, 0, PLAIN}, {"sse4.1", L1C, 19, PLAIN}, {"sse4.2", L1C, 20, PLAIN},
    {"sse4a", X1C, 6, PLAIN}, {"ssse3", L1C, 9, PLAIN}, {"tbm", X1C, 21, PLAIN},
    {"tsxldtrk", L7D, 16, PLAIN}, {"uintr", L7D, 5, PLAIN}, {"vaes", L7C, 9, YMM},
    {"vpclmulqdq", L7C, 10, YMM}, {"waitpkg", L7C, 5, PLAIN}, {"wbnoinvd", X8B, 9, PLAIN},
    {"xop", X1C, 11, YMM}, {"xsave", L1C, 27, PLAIN}, {"xsavec", LD1A, 1, PLAIN},
    {"xsaveopt", LD1A, 0, PLAIN}, {"xsaves", LD1A, 3, PLAIN},
};

static void ask(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
    memset(out, 0, 4 * sizeof *out);
    if (__get_cpuid_max(leaf & 0x80000000u, NULL) >= leaf)
        __cpuid_count(leaf, subleaf, out[0], out[1], out[2], out[3]);
}

static int has_feature(const char *name)
{
    uint32_t word[WORDS], r[4], saved = 0;
    ask(1, 0, r), word[L1C] = r[2], word[L1D] = r[3];
    if (word[L1C] >> 27 & 1) {
        uint32_t high;
        __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    }
    ask(7, 0, r), word[L7B] = r[1], word[L7C] = r[2], word[L7D] = r[3];
    uint32_t subleaves = r[0];
    ask(7, 1, r), word[L71A] = subleaves ? r[0] : 0, word[L71D] = subleaves ? r[3] : 0;
    ask(0xd, 1, r), word[LD1A] = r[0];
    ask(0x80000001u, 0, r), word[X1C] = r[2], word[X1D] = r[3];
    ask(0x80000008u, 0, r), word[X8B] = r[1];
    ask(0x14, 0, r), word[L14B] = r[1];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return (word[known[i].word] >> known[i].bit & 1) && (saved & known[i].state) == known[i].state &&
                   (known[i].state != TILES || tilescribe_use_tiles());
    return 0; /* nothing is known about it, so nothing may be hoped */
}

#elif defined(__aarch64__)

/* LLVM's names, and bits of the kernel's AT_HWCAP. */
static const struct { const char *name; uint8_t bit; } known[] = {
    {"fp-armv8", 0}, {"neon", 1}, {"aes", 3}, {"sha2", 6}, {"crc", 7}, {"lse", 8}, {"fullfp16", 10},
    {"rdm", 12}, {"jsconv", 13}, {"complxnum", 14}, {"rcpc", 15}, {"sha3", 17}, {"dotprod", 20}, {"sve", 22},
};

static int has_feature(const char *name)
{
    unsigned long capabilities = getauxval(AT_HWCAP);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return capabilities >> known[i].bit & 1;
    return 0;
}

#else

static int has_feature(const char *name)
{
    (void)name;
    return 0;
}

#endif

/* The first feature that the kernels need and this machine lacks, or NULL. */
const char *tilescribe_missing_feature(void)
{
    for (uint64_t i = 0; i < tilescribe_kernels.features; i++)
        if (!has_feature(tilescribe_kernels.feature[i]))
            return tilescribe_kernels.feature[i];
    return NULL;
}
