/* The jump of an export without a hook; included by the generated *_jumps.S (see generate.py).
 *
 * gp_table[N] is 0 until the N-th export was asked for; then it holds the real function. A zeroed table costs nothing
 * when the library is loaded into programs that never use it: no relocation, no page touched. A jump whose slot is 0
 * saves every register that can carry an argument, lets gp_resolve(N) fill the slot, restores them and continues.
 * Each stub begins with endbr64 / bti c, so that hardware which checks indirect jumps lets it pass.
 */
#if defined(__x86_64__)
#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR endbr64
#endif

    .text
    .p2align 4
    .type gp_first_call, @function
gp_first_call: /* r11d: the index */
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    sub $192, %rsp
    mov %rdi, 0(%rsp)
    mov %rsi, 8(%rsp)
    mov %rdx, 16(%rsp)
    mov %rcx, 24(%rsp)
    mov %r8, 32(%rsp)
    mov %r9, 40(%rsp)
    mov %rax, 48(%rsp)
    mov %r10, 56(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    mov %r11d, %edi
    call gp_resolve
    mov %rax, %r11
    movups 176(%rsp), %xmm7
    movups 160(%rsp), %xmm6
    movups 144(%rsp), %xmm5
    movups 128(%rsp), %xmm4
    movups 112(%rsp), %xmm3
    movups 96(%rsp), %xmm2
    movups 80(%rsp), %xmm1
    movups 64(%rsp), %xmm0
    mov 56(%rsp), %r10
    mov 48(%rsp), %rax
    mov 40(%rsp), %r9
    mov 32(%rsp), %r8
    mov 24(%rsp), %rcx
    mov 16(%rsp), %rdx
    mov 8(%rsp), %rsi
    mov 0(%rsp), %rdi
    leave
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
    .size gp_first_call, . - gp_first_call

    .macro JUMP name, index
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    _CET_ENDBR
    mov gp_table + 8 * \index(%rip), %r11
    test %r11, %r11
    je 1f
    jmp *%r11
1:  mov $\index, %r11d
    jmp gp_first_call
    .cfi_endproc
    .size \name, . - \name
    .endm

#elif defined(__aarch64__)

    .text
    .p2align 4
    .type gp_first_call, %function
gp_first_call: /* w17: the index */
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset 29, -224
    .cfi_offset 30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl gp_resolve
    mov x17, x0
    ldp q6, q7, [sp, #192]
    ldp q4, q5, [sp, #160]
    ldp q2, q3, [sp, #128]
    ldp q0, q1, [sp, #96]
    ldr x8, [sp, #80]
    ldp x6, x7, [sp, #64]
    ldp x4, x5, [sp, #48]
    ldp x2, x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #224
    .cfi_restore 29
    .cfi_restore 30
    .cfi_def_cfa_offset 0
    br x17
    .cfi_endproc
    .size gp_first_call, . - gp_first_call

    .macro JUMP name, index
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint #34 /* bti c */
    adrp x16, gp_table + 8 * \index
    ldr x17, [x16, #:lo12:gp_table + 8 * \index]
    cbz x17, 1f
    br x17
1:  mov w17, #\index
    b gp_first_call
    .cfi_endproc
    .size \name, . - \name
    .endm

#else
#error "gpupool's share library knows x86-64 and aarch64 only"
#endif

    .hidden gp_table
    .hidden gp_resolve

    .macro JUMPS_END
    .section .note.GNU-stack, "", %progbits
    .endm
