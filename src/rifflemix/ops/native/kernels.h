// Shared by all kernels: exported symbols and run-time dispatch on CPU features.
//
// Kernels are plain loops that the compiler vectorises, built once per instruction set by
// RIFFLEMIX_DISPATCH, by GCC and Clang alike. They get raw pointers and sizes from ctypes and
// allocate nothing that outlives a call. Where memory for a call cannot be had, they return
// kOutOfMemory.

#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// Raised whenever an exported function comes or changes: the loader refuses a library of another
// number, as a development checkout may hold an old one.
#define RIFFLEMIX_INTERFACE 11

#define RIFFLEMIX_EXPORT extern "C" __attribute__((visibility("default")))

#define RIFFLEMIX_INLINE inline __attribute__((always_inline))
// The same for a lambda. Every lambda with a vector as argument needs it: without inlining, the caller
// passes the vector in a register of its instruction set, and the lambda reads it from memory.
#define RIFFLEMIX_BODY __attribute__((always_inline))

// A function for each instruction set, and one by its plain name that calls the best of them:
//   RIFFLEMIX_DISPATCH(Result, name, (parameters), (arguments), { body })
// What the body calls must be inlined into it (RIFFLEMIX_INLINE) to be built for the set too, or be
// dispatched itself. It may name kBytes, of the longest vectors that the set has.
#if defined(__x86_64__) && !defined(RIFFLEMIX_ONE_INSTRUCTION_SET)  // that is for tests of each
// Clang as `zig c++` runs it has features turned off by name, and takes them back by name alone.
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
// For a function that is built for AVX2 alone, which runs on AVX-512 processors, too.
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

// Of vectors that all sets have. Longer than the processor's own, a vector would live in memory.
#if defined(__aarch64__)
constexpr int kVectorBytes = 16;
#else
constexpr int kVectorBytes = 32;
#endif

// 4: AVX-512 (x86-64-v4), 3: AVX2 (x86-64-v3), 2: NEON, 1: another architecture, 0: an x86
// processor without AVX2, on which no kernel may be called.
inline int find_level() {
#if defined(__x86_64__)
  // Not `__builtin_cpu_supports`: in a library that `zig c++` links it says no to everything.
  const auto all = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  unsigned a, b, c, d, basic = 0, more = 0, extended = 0, state = 0;
  __get_cpuid(1, &a, &b, &basic, &d);
  __get_cpuid_count(7, 0, &a, &more, &c, &d);
  __get_cpuid(0x80000001, &a, &b, &extended, &d);
  // Registers that the operating system saves: bits 1 and 2 stand for AVX, 5 to 7 for AVX-512.
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

// The same, found out when the library is loaded.
inline const int kLevel = find_level();
inline int level() { return kLevel; }

// What exported functions return instead of their result.
enum Failure : int { kOutOfMemory = -1, kBadIndex = -2 };

// The result of body() or, where an allocation in it failed, kOutOfMemory: whoever calls an
// exported function knows no exceptions, and one that left it would end the process.
template <class Body>
auto guarded(const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception&) {
    return kOutOfMemory;
  }
}

}  // namespace rifflemix
