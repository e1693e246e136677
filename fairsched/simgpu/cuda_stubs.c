// SPDX-License-Identifier: Apache-2.0
/*
 * The exported symbols, shaped as the real library's:
 *
 *   +0   81 3d rel32 imm32   cmpl $0x321cba00, gate(%rip)
 *   +10  74 rel8             je   1f
 *   +12  ff 25 rel32         jmp  *slot(%rip)
 *   +18  ff 25 rel32      1: jmp  *slot(%rip)
 *
 * so that a uprobe placed at +10, past the RIP-relative compare that would have to be single-stepped,
 * is exercised on both outcomes of the branch: taken before cuInit, not taken after. No register, and
 * nothing on the stack, is touched.
 */
#include "cuda_exports.h"
#include "cuda_api.h"

#ifndef __x86_64__
#error "the stubs are x86-64 code, as in the library they stand for"
#endif

#define GATE_SHUT 0x321cba00u

__attribute__((visibility("hidden"))) uint32_t sim_gate = GATE_SHUT;

#define HEAD(name)             \
	".pushsection .text\n" \
	".p2align 4\n"         \
	".globl " #name "\n"   \
	".type " #name ", @function\n" #name ":\n"

#define TAIL(name, impl)                        \
	".size " #name ", .-" #name "\n"        \
	".popsection\n"                         \
	".pushsection .data.rel.ro, \"aw\"\n"   \
	".p2align 3\n"                          \
	"slot_" #name ": .quad sim_" #impl "\n" \
	".popsection\n"

#define STUB(name, impl)                                        \
	__asm__(HEAD(name) "cmpl $0x321cba00, sim_gate(%rip)\n" \
			   "je 1f\n"                            \
			   "jmp *slot_" #name "(%rip)\n"        \
			   "1: jmp *slot_" #name "(%rip)\n" TAIL(name, impl));

#define PLAIN(name, impl)                     \
	__asm__(HEAD(name) "push %rbp\n"      \
			   "mov %rsp, %rbp\n" \
			   "pop %rbp\n"       \
			   "jmp *slot_" #name "(%rip)\n" TAIL(name, impl));

CUDA_EXPORTS(STUB)
CUDA_PLAIN_EXPORTS(PLAIN)
