// Which instruction set the dispatched kernels use on this processor.

#include "kernels.h"

// 4: AVX-512 (x86-64-v4), 3: AVX2 (x86-64-v3), 2: NEON, 1: baseline or another architecture.
RIFFLEMIX_EXPORT int rifflemix_instruction_level() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return 4;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("fma")) {
    return 3;
  }
#elif defined(__aarch64__)
  return 2;
#endif
  return 1;
}

RIFFLEMIX_EXPORT int rifflemix_interface() { return RIFFLEMIX_INTERFACE; }

// Entry point that setuptools' linker flags expect of an extension module on some systems.
RIFFLEMIX_EXPORT void* PyInit__kernels() { return nullptr; }
