// Parallel loops for all kernels; the implementation is in threads.cpp.

#pragma once

#include "kernels.h"

namespace rifflemix {

// Work on shares of a range: call(body, first, last).
struct Work {
  const void* body;
  void (*call)(const void* body, int64_t first, int64_t last);
};

// Runs the work over [0, count) on up to `threads` threads. If an allocation fails on any thread,
// throws std::bad_alloc on the caller's thread.
void share_work(int64_t count, int threads, const Work& work);

// The same for body(first, last).
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  const auto call = [](const void* of, int64_t first, int64_t last) {
    (*static_cast<const Body*>(of))(first, last);
  };
  share_work(count, threads, {&body, call});
}

}  // namespace rifflemix
