// Hot loops compiled once per instruction set and chosen when the program is loaded.
//
// Clones give the same bits: no fused multiply-add (-ffp-contract=off), no reassociation, and every
// reduction states its lanes. Only the body of the marked function is cloned, so what it calls has to
// be SPILLWAY_INLINE or trivially inlined; a lambda inside it is a function of its own and is not.
#pragma once

// An ifunc resolver runs before a sanitizer's runtime is up, so those builds have the base code only.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SPILLWAY_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SPILLWAY_CLONES
#endif

#define SPILLWAY_INLINE inline __attribute__((always_inline))
