// Shared by all kernels: exported symbols and run-time dispatch on CPU features.
//
// Kernels are plain loops that the compiler vectorises, built once per instruction set by
// RIFFLEMIX_DISPATCH. They get raw pointers and sizes from ctypes and allocate nothing that
// outlives a call. Where memory for a call cannot be had, they return kOutOfMemory.

#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

// Raised whenever an exported function changes: the loader refuses a library of another number, as
// a development checkout may hold an old one.
#define RIFFLEMIX_INTERFACE 4

#define RIFFLEMIX_EXPORT extern "C" __attribute__((visibility("default")))

// One clone of a function for each instruction set; the loader picks one when the library is
// loaded. What the function calls must be inlined into it (RIFFLEMIX_INLINE) to be cloned too.
#if defined(RIFFLEMIX_ONE_INSTRUCTION_SET)  // for tests of each
#define RIFFLEMIX_DISPATCH
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define RIFFLEMIX_DISPATCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RIFFLEMIX_DISPATCH
#endif
#define RIFFLEMIX_INLINE inline __attribute__((always_inline))

namespace rifflemix {

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
