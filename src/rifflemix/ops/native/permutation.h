// Shared by the permutation kernels: the problem as passed by Python, and the division of work.
//
// Without scratch memory, a kernel only returns the number of scratch bytes that it needs.

#pragma once

#include <atomic>
#include <memory>

#include "keys.h"
#include "threads.h"

namespace rifflemix::permutation {

// x is (batch, length, channels) with stride 1 for channels and any other strides; outputs are
// contiguous. Python passes 64-bit fields in this order; unused fields are 0.
struct Problem {
  const void* x;
  int64_t batch_stride, row_stride;
  void* y;
  void* index;                // index of each position's source token; filter: its distance
  int64_t index_bytes;        // 2, 4 or 8; filter: 1; 0 without index
  uint8_t* swaps;             // (batch, length / 2, channels), 1 = the pair is exchanged
  const uint8_t* mask;        // (batch, length), 1 = padding
  const uint8_t* descending;  // (channels)
  const int64_t* steps;       // (channels) shifts; filter: ranks
  int64_t batch, length, channels, group_size;  // filter: group_size is the window
  int64_t heads;              // heads with a reference channel; 0: sort each channel separately
  int64_t element_bytes, infinity, nan;
  void* scratch;
  int64_t threads;

  template <class Bits>
  Format<Bits> format() const {
    return {static_cast<Bits>(infinity), static_cast<Bits>(nan)};
  }
  template <class Bits>
  RIFFLEMIX_INLINE const Bits* row(int64_t b, int64_t n) const {
    return static_cast<const Bits*>(x) + b * batch_stride + n * row_stride;
  }
  RIFFLEMIX_INLINE bool padded(int64_t b, int64_t n) const {
    return mask != nullptr && mask[b * length + n] != 0;
  }
  // Starting a thread pays off for some tens of thousands of values.
  int64_t useful_threads() const {
    return std::max<int64_t>(1, std::min(threads, batch * length * channels >> 15));
  }
};

// Runs body(first, last, slot) over [0, count) in contiguous shares. Concurrent shares have
// different slots, numbered from 0 to p.useful_threads() - 1.
template <class Body>
void share(const Problem& p, int64_t count, const Body& body) {
  const int64_t threads = p.useful_threads();
  if (count == 0) return;
  const std::unique_ptr<std::atomic<bool>[]> taken(new std::atomic<bool>[threads]());
  parallel_for(count, static_cast<int>(threads), [&](int64_t first, int64_t last) {
    int64_t slot = 0;
    while (taken[slot].exchange(true)) slot = (slot + 1) % threads;
    body(first, last, slot);
    taken[slot] = false;
  });
}

// Prefetches rows: the hardware prefetcher does not detect strides of a whole row.
RIFFLEMIX_INLINE void foresee(const void* first, int64_t stride, int64_t count) {
  const char* row = static_cast<const char*>(first);
  for (int64_t i = 0; i < count; ++i) __builtin_prefetch(row + i * stride);
}

// Allocates pieces of the scratch memory. With a null base, it only counts the bytes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kLineBytes - 1) / kLineBytes * kLineBytes;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

RIFFLEMIX_INLINE int64_t quotient_up(int64_t count, int64_t of) { return (count + of - 1) / of; }

// Source positions of a circular shift of each sample's valid tokens.
struct Shift {
  int32_t *position, *rank;  // (batch, length): of the r-th valid token; of each valid position
  int32_t *valid;            // (batch): number of valid tokens
  int32_t *step;             // (batch, channels): shift in 0..valid-1

  Shift(const Problem& p, Arena& arena) {
    const bool needed = p.steps != nullptr;
    position = arena.take<int32_t>(needed ? p.batch * p.length : 0);
    rank = arena.take<int32_t>(needed ? p.batch * p.length : 0);
    valid = arena.take<int32_t>(needed ? p.batch : 0);
    step = arena.take<int32_t>(needed ? p.batch * p.channels : 0);
  }

  void prepare(const Problem& p) const {
    for (int64_t b = 0; b < p.batch && p.steps != nullptr; ++b) {
      int32_t count = 0;
      for (int64_t n = 0; n < p.length; ++n) {
        if (p.padded(b, n)) continue;
        position[b * p.length + count] = static_cast<int32_t>(n);
        rank[b * p.length + n] = count++;
      }
      valid[b] = count;
      const int64_t modulus = std::max(count, 1);
      for (int64_t c = 0; c < p.channels; ++c) {
        const int64_t step_c = p.steps[c] % modulus;
        step[b * p.channels + c] = static_cast<int32_t>(step_c < 0 ? step_c + modulus : step_c);
      }
    }
  }

  // Source position in sample b for valid position n of channel c.
  RIFFLEMIX_INLINE int64_t source(const Problem& p, int64_t b, int64_t n, int64_t c) const {
    const int32_t back = rank[b * p.length + n] - step[b * p.channels + c];
    return position[b * p.length + (back < 0 ? back + valid[b] : back)];
  }
};

}  // namespace rifflemix::permutation
