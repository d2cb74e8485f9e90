// Shared by all kernels: exported symbols and run-time dispatch on CPU features.
//
// Kernels are plain loops that GCC or Clang vectorizes. RIFFLEMIX_DISPATCH builds each kernel once
// per instruction set. Kernels get raw pointers and sizes from ctypes, and free all memory that
// they allocate. They return kOutOfMemory if an allocation fails.

#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// Increase this number whenever an exported function is added or changed. The loader rejects a
// library with another number, for example an old build in a development checkout.
#define RIFFLEMIX_INTERFACE 14

#define RIFFLEMIX_EXPORT extern "C" __attribute__((visibility("default")))

#define RIFFLEMIX_INLINE inline __attribute__((always_inline))
// The same for a lambda. Every lambda with a vector argument needs it. Without inlining, the caller
// passes the vector in a register of its instruction set, but the lambda reads it from memory.
#define RIFFLEMIX_BODY __attribute__((always_inline))

// Defines one function per instruction set, and `name`, which calls the best of them:
//   RIFFLEMIX_DISPATCH(Result, name, (parameters), (arguments), { body })
// Functions called by the body must be inlined (RIFFLEMIX_INLINE) or dispatched: otherwise they are
// not built for the set. The body may use kBytes, the size of the set's longest vectors.
#if defined(__x86_64__) && !defined(RIFFLEMIX_ONE_INSTRUCTION_SET)  // defined in tests of one set
// `zig c++` turns off Clang features by name, and they can only be turned on again by name.
#if defined(__clang__)
#define RIFFLEMIX_V3 "sse4.2,popcnt,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe"
#define RIFFLEMIX_V4 RIFFLEMIX_V3 ",avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
#else
#define RIFFLEMIX_V3 "arch=x86-64-v3"
#define RIFFLEMIX_V4 "arch=x86-64-v4"
#endif
#define RIFFLEMIX_FOR(set) __attribute__((noinline, target(set)))
#define RIFFLEMIX_DISPATCH(Result, name, parameters, arguments, ...)            \
  RIFFLEMIX_FOR(RIFFLEMIX_V4) static Result name##_v4 parameters {              \
    [[maybe_unused]] constexpr int kBytes = 64;                                 \
    __VA_ARGS__                                                                 \
  }                                                                             \
  RIFFLEMIX_FOR(RIFFLEMIX_V3) static Result name##_v3 parameters {              \
    [[maybe_unused]] constexpr int kBytes = 32;                                 \
    __VA_ARGS__                                                                 \
  }                                                                             \
  [[maybe_unused]] static Result name parameters {                              \
    return rifflemix::level() == 4 ? name##_v4 arguments : name##_v3 arguments; \
  }
// For a function that is built only for AVX2; it also runs on AVX-512 processors.
#define RIFFLEMIX_AVX2 RIFFLEMIX_FOR(RIFFLEMIX_V3)
#else
#define RIFFLEMIX_AVX2
#define RIFFLEMIX_DISPATCH(Result, name, parameters, arguments, ...) \
  [[maybe_unused]] static Result name parameters {                   \
    [[maybe_unused]] constexpr int kBytes = rifflemix::kVectorBytes; \
    __VA_ARGS__                                                      \
  }
#endif

namespace rifflemix {

// Size of vectors that all sets support. Longer vectors would be stored in memory.
#if defined(__aarch64__)
constexpr int kVectorBytes = 16;
#else
constexpr int kVectorBytes = 32;
#endif

// 4: AVX-512 (x86-64-v4), 3: AVX2 (x86-64-v3), 2: NEON, 1: another architecture, 0: an x86
// processor without AVX2. No kernel may be called on level 0.
inline int find_level() {
#if defined(__x86_64__)
  // Not `__builtin_cpu_supports`: it always returns false in a library linked by `zig c++`.
  const auto all = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  unsigned a, b, c, d, basic = 0, more = 0, extended = 0, state = 0;
  __get_cpuid(1, &a, &b, &basic, &d);
  __get_cpuid_count(7, 0, &a, &more, &c, &d);
  __get_cpuid(0x80000001, &a, &b, &extended, &d);
  // Registers that the operating system saves: bits 1 and 2 for AVX, bits 5 to 7 for AVX-512.
  if (all(basic, bit_OSXSAVE)) __asm__ volatile("xgetbv" : "=a"(state), "=d"(d) : "c"(0));
  const bool v3 = all(state, 0x06) && all(extended, bit_LZCNT) &&
                  all(basic, bit_SSE4_2 | bit_POPCNT | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE) &&
                  all(more, bit_AVX2 | bit_BMI | bit_BMI2);
  const bool v4 = all(state, 0xE6) && all(more, bit_AVX512F | bit_AVX512BW | bit_AVX512CD |
                                                    bit_AVX512DQ | bit_AVX512VL);
  if (v3) return v4 ? 4 : 3;
  return 0;
#elif defined(__aarch64__)
  return 2;
#else
  return 1;
#endif
}

// The level, determined when the library is loaded.
inline const int kLevel = find_level();
inline int level() { return kLevel; }

// Error codes that exported functions return instead of a result.
enum Failure : int { kOutOfMemory = -1, kBadIndex = -2 };

// Returns the result of body(), or kOutOfMemory if an allocation in it fails. Callers of exported
// functions do not support exceptions: an exception that leaves the function ends the process.
template <class Body>
auto guarded(const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception&) {
    return kOutOfMemory;
  }
}

}  // namespace rifflemix
