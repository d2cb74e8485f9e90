// Sorting network over the rows of a tile: every lane of a row vector is a separate column.
//
// Batcher's odd-even merge sort sorts blocks of 16 rows, then bitonic merges combine the blocks. In
// this variant of bitonic merges all exchanges point downwards: the first stage mirrors the second
// half. Up to four stages run on 16 rows in registers. Each block of kBlock rows is finished before
// the next block starts, so most stages stay in the L1 cache. Rows from `limit` on must contain the
// largest key. They never move, so exchanges between two of them are skipped.

#pragma once

#include "keys.h"

namespace rifflemix::permutation {

constexpr int kBlockLog = 8;
constexpr int64_t kBlock = int64_t{1} << kBlockLog;

// Number of vectors in a tile of `rows`. One row after each block is unused, so that rows at
// power-of-two distances do not share a cache set.
RIFFLEMIX_INLINE int64_t tile_rows(int64_t rows) { return rows + rows / kBlock; }
RIFFLEMIX_INLINE int64_t tile_row(int64_t row) { return row + row / kBlock; }

template <class V>
RIFFLEMIX_INLINE void exchange(V& first, V& second) {
  const V low = first < second ? first : second;
  second = first < second ? second : first;
  first = low;
}

template <int At, int Count, int Step, class V>
RIFFLEMIX_INLINE void odd_even_merge(V* r) {
  if constexpr (2 * Step < Count) {
    odd_even_merge<At, Count, 2 * Step>(r);
    odd_even_merge<At + Step, Count, 2 * Step>(r);
#pragma GCC unroll 16
    for (int i = At + Step; i + Step < At + Count; i += 2 * Step) exchange(r[i], r[i + Step]);
  } else {
    exchange(r[At], r[At + Step]);
  }
}

template <int At, int Count, class V>
RIFFLEMIX_INLINE void odd_even_sort(V* r) {
  if constexpr (Count > 1) {
    odd_even_sort<At, Count / 2>(r);
    odd_even_sort<At + Count / 2, Count / 2>(r);
    odd_even_merge<At, Count, 1>(r);
  }
}

template <int Count, class V>
RIFFLEMIX_INLINE void sort_in_registers(V* rows) {
  V r[Count];
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) r[i] = rows[i];
  odd_even_sort<0, Count>(r);
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) rows[i] = r[i];
}

// The stages of a bitonic merge of Count registers.
template <int Count, class V>
RIFFLEMIX_INLINE void half_clean(V* r) {
#pragma GCC unroll 4
  for (int distance = Count / 2; distance > 0; distance /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) {
      if (!(i & distance)) exchange(r[i], r[i + distance]);
    }
  }
}

// Runs log2(Count) stages on Count rows that are `stride` vectors apart. Mirror: these are the
// first stages of a merge, and the second half of the rows is read from `second`.
template <int Count, bool Mirror, class V>
RIFFLEMIX_INLINE void stages(V* first, V* second, int64_t stride) {
  V r[Count];
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) r[i] = (i < Count / 2 ? first : second)[i * stride];
  if constexpr (Mirror) {
#pragma GCC unroll 16
    for (int i = 0; i < Count / 2; ++i) exchange(r[i], r[Count - 1 - i]);
    half_clean<Count / 2>(r);
    half_clean<Count / 2>(r + Count / 2);
  } else {
    half_clean<Count>(r);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) (i < Count / 2 ? first : second)[i * stride] = r[i];
}

// Runs log2(Count) stages over `size` rows; rows from `limit` on are skipped.
template <int Count, bool Mirror, class V>
RIFFLEMIX_INLINE void pass(V* rows, int64_t size, int64_t limit) {
  const int64_t spacing = size / Count;
  const int64_t stride = tile_rows(spacing);
  const int64_t start = Mirror ? std::max<int64_t>(0, spacing - (limit - size / 2)) : 0;
  for (int64_t i = start; i < spacing; ++i) {
    V* first = rows + tile_row(i);
    stages<Count, Mirror>(first, Mirror ? rows + tile_row(spacing - 1 - i) : first, stride);
  }
}

template <bool Mirror, class V>
RIFFLEMIX_INLINE void passes(V* rows, int64_t size, int64_t limit, int num_stages) {
  switch (num_stages) {
    case 1: return pass<2, Mirror>(rows, size, limit);
    case 2: return pass<4, Mirror>(rows, size, limit);
    case 3: return pass<8, Mirror>(rows, size, limit);
    default: return pass<16, Mirror>(rows, size, limit);
  }
}

// Sorts up to kBlock contiguous rows. `size` is a power of two and at least 16.
template <class V>
RIFFLEMIX_INLINE void sort_block(V* rows, int64_t size, int64_t limit) {
  limit = std::min(size, limit);
  for (int64_t at = 0; at < limit; at += 16) sort_in_registers<16>(rows + at);
  for (int log = 5; (int64_t{1} << log) <= size; ++log) {
    const int64_t run = int64_t{1} << log;
    for (int64_t at = 0; at + run / 2 < limit; at += run) {
      passes<true>(rows + at, run, limit - at, log - 4);
      for (int64_t i = at; i < std::min(at + run, limit); i += 16) {
        pass<16, false>(rows + i, 16, 16);
      }
    }
  }
}

// Merges the two sorted halves of 2^log > kBlock rows.
template <class V>
RIFFLEMIX_INLINE void merge(V* rows, int log, int64_t limit) {
  int64_t size = int64_t{1} << log;
  limit = std::min(size, limit);
  int now = std::min(4, log - kBlockLog);
  passes<true>(rows, size, limit, now);
  for (int left = log - kBlockLog - now; left > 0; left -= now) {
    size >>= now;
    now = std::min(4, left);
    for (int64_t at = 0; at < limit; at += size) {
      passes<false>(rows + tile_row(at), size, size, now);
    }
  }
  for (int64_t at = 0; at < limit; at += kBlock) {
    V* block = rows + tile_row(at);
    pass<16, false>(block, kBlock, kBlock);
    for (int64_t i = 0; i < std::min(kBlock, limit - at); i += 16) {
      pass<16, false>(block + i, 16, 16);
    }
  }
}

// Sorts each lane of `size` rows, a power of two. Rows from `limit` on contain the largest key.
template <class V>
RIFFLEMIX_INLINE void sort_rows(V* rows, int64_t size, int64_t limit) {
  switch (size) {
    case 1: return;
    case 2: return sort_in_registers<2>(rows);
    case 4: return sort_in_registers<4>(rows);
    case 8: return sort_in_registers<8>(rows);
  }
  const int64_t block = std::min(size, kBlock);
  for (int64_t at = 0; at < limit; at += block) sort_block(rows + tile_row(at), block, limit - at);
  for (int log = kBlockLog + 1; (int64_t{1} << log) <= size; ++log) {
    const int64_t run = int64_t{1} << log;
    for (int64_t at = 0; at + run / 2 < limit; at += run) {
      merge(rows + tile_row(at), log, limit - at);
    }
  }
}

}  // namespace rifflemix::permutation
