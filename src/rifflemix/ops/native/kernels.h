// Shared by all kernels: exported symbols, run-time dispatch on CPU features, threads.
//
// Kernels are plain loops that the compiler vectorises, built once per instruction set by
// RIFFLEMIX_DISPATCH. They get raw pointers and sizes from ctypes and allocate nothing that
// outlives a call.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

// Raised whenever an exported function changes: the loader refuses a library of another number, as
// a development checkout may hold an old one.
#define RIFFLEMIX_INTERFACE 1

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

// Runs body(first, last) over [0, count) on up to `threads` threads, in shares that whoever is free
// takes next. The caller works too, and waits for shares, not for threads: on a busy machine a
// helper that the system starts late finds nothing left and holds nobody up.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  constexpr int64_t kSharesPerThread = 4;
  struct Progress {
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable finished;
    int64_t done = 0;
  };
  const int64_t workers = std::min<int64_t>(threads, count);
  if (workers <= 1) return body(0, count);
  const int64_t shares = std::min(count, kSharesPerThread * workers);
  const auto progress = std::make_shared<Progress>();
  // `body` is the caller's and is not touched after the last share: late helpers take none.
  const auto work = [progress, &body, count, shares] {
    for (int64_t share; (share = progress->next++) < shares;) {
      body(count * share / shares, count * (share + 1) / shares);
      const std::lock_guard<std::mutex> lock(progress->mutex);
      if (++progress->done == shares) progress->finished.notify_one();
    }
  };
  try {
    for (int64_t helper = 1; helper < workers; ++helper) std::thread(work).detach();
  } catch (const std::system_error&) {
    // No more threads to be had: those that there are do the work.
  }
  work();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->finished.wait(lock, [&] { return progress->done == shares; });
}

}  // namespace rifflemix
