/* Stands for NVIDIA's libraries where candle is linked with its CUDA back end.
 *
 * candle's bindings are linked to the driver, cuBLAS and cuRAND, so that a program made with them would neither link nor start on a machine without
 * those. This defines the functions that are called (functions.h): each finds its library on its first call, and where there is none, returns the error
 * by which that library says that it cannot be used. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum library { DRIVER, CUBLAS, CURAND };

/* What the machine code below reads: the address comes first. */
struct function {
    void *address; /* NULL until the first call */
    const char *name;
    enum library library;
};

#define FUNCTION(library, name) \
    __attribute__((used, visibility("hidden"))) struct function link_##name = {NULL, #name, library};
#include "functions.h"
#undef FUNCTION

static int no_driver(void) { return 100; /* CUDA_ERROR_NO_DEVICE */ }
static int no_cublas(void) { return 1; /* CUBLAS_STATUS_NOT_INITIALIZED */ }
static int no_curand(void) { return 101; /* CURAND_STATUS_NOT_INITIALIZED */ }

/* Loads a library by the loader's rules, or from where CUDA is installed. NULL where it is not. */
static void *load(enum library library) {
    static const char *const names[][3] = {
        [DRIVER] = {"libcuda.so.1"},
        [CUBLAS] = {"libcublas.so.13", "libcublas.so.12"},
        [CURAND] = {"libcurand.so.10"},
    };
    const char *const folders[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    for (size_t i = 0; i < 3 && names[library][i] != NULL; i++) {
        void *found = dlopen(names[library][i], RTLD_NOW | RTLD_GLOBAL);
        for (size_t j = 0; j < sizeof folders / sizeof *folders && found == NULL; j++) {
            char path[4096];
            if (folders[j] == NULL) continue;
            int length = snprintf(path, sizeof path, "%s/lib64/%s", folders[j], names[library][i]);
            if (length > 0 && (size_t)length < sizeof path) found = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        }
        if (found != NULL) return found;
    }
    return NULL;
}

/* Whether the driver can be loaded; it may still know of no device. */
int tilescribe_has_driver(void) { return load(DRIVER) != NULL; }

/* The address that calls of a function go to. Threads that come at once find the same one. */
__attribute__((used, visibility("hidden"))) void *link_find(struct function *function) {
    static int (*const absent[])(void) = {[DRIVER] = no_driver, [CUBLAS] = no_cublas, [CURAND] = no_curand};
    void *library = load(function->library);
    void *address = library == NULL ? NULL : dlsym(library, function->name);
    if (address == NULL) address = (void *)absent[function->library];
    __atomic_store_n(&function->address, address, __ATOMIC_RELEASE);
    return address;
}

/* Each function jumps to `link_call` with its `struct function` in a register that no argument uses; that jumps to the address, with all registers
 * and the stack as the caller left them. */
#if defined(__x86_64__)

#define FUNCTION(library, name) \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" \
            "  leaq link_" #name "(%rip), %r11\n" \
            "  jmp link_call\n" \
            ".size " #name ", . - " #name "\n");
__asm__(".text\n.p2align 4\n.type link_call, @function\nlink_call:\n"
        "  movq (%r11), %r10\n"
        "  testq %r10, %r10\n"
        "  je 1f\n"
        "  jmp *%r10\n"
        "1:\n"
        "  pushq %rbp\n  movq %rsp, %rbp\n"
        "  pushq %rdi\n  pushq %rsi\n  pushq %rdx\n  pushq %rcx\n  pushq %r8\n  pushq %r9\n"
        "  subq $128, %rsp\n"
        "  movups %xmm0, (%rsp)\n  movups %xmm1, 16(%rsp)\n  movups %xmm2, 32(%rsp)\n  movups %xmm3, 48(%rsp)\n"
        "  movups %xmm4, 64(%rsp)\n  movups %xmm5, 80(%rsp)\n  movups %xmm6, 96(%rsp)\n  movups %xmm7, 112(%rsp)\n"
        "  movq %r11, %rdi\n  call link_find\n  movq %rax, %r10\n"
        "  movups (%rsp), %xmm0\n  movups 16(%rsp), %xmm1\n  movups 32(%rsp), %xmm2\n  movups 48(%rsp), %xmm3\n"
        "  movups 64(%rsp), %xmm4\n  movups 80(%rsp), %xmm5\n  movups 96(%rsp), %xmm6\n  movups 112(%rsp), %xmm7\n"
        "  addq $128, %rsp\n"
        "  popq %r9\n  popq %r8\n  popq %rcx\n  popq %rdx\n  popq %rsi\n  popq %rdi\n"
        "  popq %rbp\n"
        "  jmp *%r10\n"
        ".size link_call, . - link_call\n");

#elif defined(__aarch64__)

#define FUNCTION(library, name) \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" \
            "  adrp x16, link_" #name "\n" \
            "  add x16, x16, :lo12:link_" #name "\n" \
            "  b link_call\n" \
            ".size " #name ", . - " #name "\n");
__asm__(".text\n.p2align 4\n.type link_call, @function\nlink_call:\n"
        "  ldar x17, [x16]\n"
        "  cbz x17, 1f\n"
        "  br x17\n"
        "1:\n"
        "  stp x29, x30, [sp, -224]!\n  mov x29, sp\n"
        "  stp x0, x1, [sp, 16]\n  stp x2, x3, [sp, 32]\n  stp x4, x5, [sp, 48]\n  stp x6, x7, [sp, 64]\n  str x8, [sp, 80]\n"
        "  stp q0, q1, [sp, 96]\n  stp q2, q3, [sp, 128]\n  stp q4, q5, [sp, 160]\n  stp q6, q7, [sp, 192]\n"
        "  mov x0, x16\n  bl link_find\n  mov x17, x0\n"
        "  ldp x0, x1, [sp, 16]\n  ldp x2, x3, [sp, 32]\n  ldp x4, x5, [sp, 48]\n  ldp x6, x7, [sp, 64]\n  ldr x8, [sp, 80]\n"
        "  ldp q0, q1, [sp, 96]\n  ldp q2, q3, [sp, 128]\n  ldp q4, q5, [sp, 160]\n  ldp q6, q7, [sp, 192]\n"
        "  ldp x29, x30, [sp], 224\n"
        "  br x17\n"
        ".size link_call, . - link_call\n");

#else
#error "candle's CUDA back end is linked on x86-64 and AArch64 only"
#endif

#include "functions.h"
